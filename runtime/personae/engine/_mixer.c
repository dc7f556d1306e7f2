/* The mixer: one llama_decode that serves different LoRA adapters to every row, on an unmodified llama.cpp.
 *
 * The idea. A rank-1 all-zero "template" adapter is loaded through llama.cpp's own API before the context is made, so llama.cpp
 * builds beside each target matrix W the chain
 *     res = W x;   a = A x;   b = B a;   s = scale(b);   out = res + s.
 * `cb_eval` shows us every node of the graph before any is computed. There we keep the chain's shapes and change its work:
 *     a, b, s   become NONE: no work, no thread barrier
 *     out       becomes CUSTOM: out[t] = res[t] + sum over p of B_tp (A_tp x[t]) * scale_tp, with our own tables, each row under
 *               its own voice: up to MAX_PARTS adapters, its parts, whose effects are added up
 * and answer false, so that the graph still runs in one piece on all threads. A rewritten graph that llama.cpp reuses stays
 * rewritten; a rebuilt one is rewritten again.
 *
 * Two forms of a site (one target matrix in the graph)
 *     whole   one CUSTOM node, `out`; threads take whole rows, so a site costs one barrier. Needs enough rows to go round, out in
 *             the place of res, and x still unharmed when `out` runs (both checked by address).
 *     halves  `a` is CUSTOM too and computes A x of every part into our scratch, split over ranks; `out` is split over outputs.
 *             For few rows.
 *
 * What always holds
 *     - Nothing is allocated, locked or looked up by name while a graph runs.
 *     - No two threads write to the same element of a row: in the whole form all parts of a row belong to one item, in the halves
 *       form a thread adds all parts to its own range of outputs. Parts are added in their order, in either form.
 *     - A chain is changed only when all five nodes were recognised; one that is not is counted (`broken`) and left as it was,
 *       which adds the zero template and so would lose an adapter: the backend treats a count above zero as a failed step.
 *     - Row tables and adapters are changed only between decodes, by the thread that decodes. The mixer holds a reference to
 *       every adapter of the current rows, so none can be freed under a running graph.
 *
 * ggml's structs are mirrored here, not included: the wheel that will be met at run time is not known when this is compiled.
 * engine/llama/abi.py checks every field we touch against the live library, and takes the operation codes from it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint16_t half; /* IEEE 754 binary16, as bits */

enum {
    PANEL = 32,          /* outputs of B kept together: 64 bytes a rank, one cache line */
    MAX_RANK = 256,      /* of one matrix; bounds the scratch on each thread's stack */
    MAX_ROWS = 2048,     /* of one decode; a prefill chunk is the largest */
    MAX_WIDTH = 1 << 24, /* inputs or outputs of one matrix; keeps every product of sizes far from overflow */
    MAX_PARTS = 4,       /* adapters of one row; types.py calls it MAX_VOICE_PARTS */
    MAX_ITEM = 8,        /* rows of one voice that a thread takes at once: A and B stay in its cache for them */
    N_THREADS_ALL = -1,  /* ggml: as many tasks as threads */
};

/* --- what ggml looks like (checked at run time, see above) --------------------------------------------------------- */

typedef struct tensor tensor;
struct tensor {
    int32_t type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    tensor *src[10];
    tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
};
typedef void (*custom_fun)(tensor *dst, int ith, int nth, void *user);
typedef struct { custom_fun fun; int n_tasks; void *user; } custom_params;
typedef struct { int none, mul_mat, scale, add, custom, reshape, view, permute, transpose; } op_codes;

/* --- halves and kernels --------------------------------------------------------------------------------------------- */

static inline float half_to_float(half h) {
    const uint32_t sign = (uint32_t) (h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    union { uint32_t u; float f; } bits;
    if (exponent == 31) bits.u = sign | 0x7f800000 | mantissa << 13;
    else if (exponent) bits.u = sign | (exponent + 112) << 23 | mantissa << 13;
    else { bits.f = (float) mantissa * 0x1p-24f; bits.u |= sign; }
    return bits.f;
}

#define K(name) name##_plain
#define TARGET
#define VW 1
#define V float
#define V_ZERO 0.0f
#define V_SET1(f) (f)
#define V_LOADF(p) (*(p))
#define V_STOREF(p, v) (*(p) = (v))
#define V_LOADH(p) half_to_float(*(p))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#define V_ADD(a, b) ((a) + (b))
#define V_SUM(v) (v)
#include "_mixer_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma,f16c"))) static inline float sum_avx2(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#define K(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define VW 8
#define V __m256
#define V_ZERO _mm256_setzero_ps()
#define V_SET1(f) _mm256_set1_ps(f)
#define V_LOADF(p) _mm256_loadu_ps(p)
#define V_STOREF(p, v) _mm256_storeu_ps(p, v)
#define V_LOADH(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p)))
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_ADD(a, b) _mm256_add_ps(a, b)
#define V_SUM(v) sum_avx2(v)
#include "_mixer_kernels.h"

#define K(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define VW 16
#define V __m512
#define V_ZERO _mm512_setzero_ps()
#define V_SET1(f) _mm512_set1_ps(f)
#define V_LOADF(p) _mm512_loadu_ps(p)
#define V_STOREF(p, v) _mm512_storeu_ps(p, v)
#define V_LOADH(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (p)))
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define V_SUM(v) _mm512_reduce_add_ps(v)
#include "_mixer_kernels.h"
#elif defined(__aarch64__)
#define K(name) name##_neon
#define TARGET
#define VW 4
#define V float32x4_t
#define V_ZERO vdupq_n_f32(0)
#define V_SET1(f) vdupq_n_f32(f)
#define V_LOADF(p) vld1q_f32(p)
#define V_STOREF(p, v) vst1q_f32(p, v)
#define V_LOADH(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define V_FMA(a, b, c) vfmaq_f32(c, a, b)
#define V_ADD(a, b) vaddq_f32(a, b)
#define V_SUM(v) vaddvq_f32(v)
#include "_mixer_kernels.h"
#endif

typedef void (*shrink_fun)(const half *a, int64_t n_in, int k_lo, int k_hi, const float *const *x, int nt, float *const *y);
typedef void (*expand_fun)(const half *b, int64_t n_out, int rank, int64_t p_lo, int64_t p_hi, const float *const *y, int nt, float *const *out);
typedef struct { const char *name; shrink_fun shrink; expand_fun expand; } kernel_set;

static kernel_set kernels = { "plain", shrink_plain, expand_plain };

static bool choose_kernels(const char *wanted) { /* NULL: the best this CPU runs */
    const kernel_set plain = { "plain", shrink_plain, expand_plain };
    kernel_set can[3] = { plain };
    int n = 1;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        can[n++] = (kernel_set) { "avx2", shrink_avx2, expand_avx2 };
    if (n == 2 && __builtin_cpu_supports("avx512f")) can[n++] = (kernel_set) { "avx512", shrink_avx512, expand_avx512 };
#elif defined(__aarch64__)
    can[n++] = (kernel_set) { "neon", shrink_neon, expand_neon };
#endif
    for (int i = n - 1; i >= 0; i--)
        if (!wanted || !strcmp(wanted, can[i].name)) { kernels = can[i]; return true; }
    return false;
}

/* --- adapters, rows, sites ------------------------------------------------------------------------------------------ */

typedef struct { const half *a, *b; int rank; float scale; int n_in, n_out; } factors; /* rank 0: this matrix is not adapted */

typedef struct {
    PyObject_HEAD
    int n_sites;
    factors *sites;
    half *memory; /* all A and B, owned; see take_memory */
    Py_ssize_t n_bytes;
} adapter_object;

typedef struct { const adapter_object *adapter; float scale; } part;
typedef struct { int n_parts; part parts[MAX_PARTS]; } voice; /* n_parts 0: the base alone */
typedef struct { voice under; int first, n; } item; /* rows first .. first+n-1 share a voice */
typedef struct { int n_rows, n_items; item items[MAX_ROWS]; } row_table;

typedef struct mixer_object mixer_object;
typedef struct { mixer_object *mixer; int index; int64_t n_in, n_out; atomic_int next; char name[64]; } site;
typedef struct { const tensor *lora_a; site *at; } site_entry;
typedef struct { tensor *a, *b, *s; site *at; } chain; /* a target matrix being recognised, node by node */

enum { N_ENTRIES = 8192 }; /* open addressing; more than twice MAX_SITES */
enum { MAX_SITES = 4000 };

struct mixer_object {
    PyObject_HEAD
    op_codes op;
    int n_sites, n_threads;
    site *sites;
    site_entry entries[N_ENTRIES];
    chain open;
    row_table rows, outs; /* outs: after the last attention llama.cpp keeps only the rows whose logits were asked for */
    PyObject *held;       /* the voices of the current rows, and through them their adapters */
    bool *seen;           /* sites met in a graph */
    long n_rewritten, n_broken;
    atomic_long n_misfits;
    float (*scratch)[MAX_ROWS][MAX_RANK]; /* y of the `halves` form: for each of MAX_PARTS parts all rows, 8 MiB, touched where used */
};

static const row_table *table_of(mixer_object *m, const tensor *x) {
    if (x->ne[2] == 1 && x->ne[3] == 1) {
        if (x->ne[1] == m->rows.n_rows) return &m->rows;
        if (x->ne[1] == m->outs.n_rows) return &m->outs;
    }
    atomic_fetch_add_explicit(&m->n_misfits, 1, memory_order_relaxed); /* all threads of a graph come by here */
    return NULL;
}

static float *row_of(const tensor *t, int64_t row) { return (float *) ((char *) t->data + row * t->nb[1]); }

static const tensor *input_of(const tensor *out) { return out->src[1]->src[0]->src[1]->src[1]; } /* out -> s -> b -> a -> x */

/* An ADD usually writes over its first operand; where ggml gave it a place of its own, bring the rows over. */
static void bring_rows(tensor *out, int64_t lo, int64_t hi) {
    const tensor *res = out->src[0];
    if (out->data == res->data) return;
    for (int64_t t = 0; t < out->ne[1]; t++) memcpy(row_of(out, t) + lo, row_of(res, t) + lo, (hi - lo) * sizeof(float));
}

/* One part of rows first .. first+n-1. */
static void add_part(const site *at, const part *p, int first, int n, const tensor *x, tensor *out) {
    const factors *f = &p->adapter->sites[at->index];
    const float scale = f->scale * p->scale;
    float y[2][MAX_RANK], *ys[2] = { y[0], y[1] }, *o[2];
    const float *xs[2];
    for (int end = first + n, nt; first < end; first += nt) {
        nt = end - first >= 2 ? 2 : 1;
        for (int t = 0; t < nt; t++) { xs[t] = row_of(x, first + t); o[t] = row_of(out, first + t); }
        kernels.shrink(f->a, at->n_in, 0, f->rank, xs, nt, ys);
        for (int t = 0; t < nt; t++)
            for (int k = 0; k < f->rank; k++) y[t][k] *= scale;
        kernels.expand(f->b, at->n_out, f->rank, 0, (at->n_out + PANEL - 1) / PANEL, (const float *const *) ys, nt, o);
    }
}

/* Part by part, so that a part's A and B are read once for all rows of the item. */
static void add_item(const site *at, const item *it, const tensor *x, tensor *out) {
    for (const part *p = it->under.parts, *end = p + it->under.n_parts; p < end; p++)
        if (p->adapter->sites[at->index].rank) add_part(at, p, it->first, it->n, x, out);
}

/* CUSTOM `out`, whole form. Rows are handed out one item at a time, so unequal ranks and a descheduled thread even out. */
static void run_whole(tensor *out, int ith, int nth, void *user) {
    site *at = user;
    const tensor *x = input_of(out);
    const row_table *rows = table_of(at->mixer, x);
    (void) ith, (void) nth;
    if (!rows) return;
    for (int i; (i = atomic_fetch_add_explicit(&at->next, 1, memory_order_relaxed)) < rows->n_items;) add_item(at, &rows->items[i], x, out);
}

/* `a` of one part of one row, of all its ranks those blocks of four that are this thread's turn. */
static void shrink_part(const site *at, const part *p, const float *x, float *y, int ith, int nth, int *turn) {
    const factors *f = &p->adapter->sites[at->index];
    for (int k = 0; k < f->rank; k += 4)
        if ((*turn)++ % nth == ith) kernels.shrink(f->a, at->n_in, k, k + 4 < f->rank ? k + 4 : f->rank, &x, 1, &y);
}

/* CUSTOM `a`, first half: y = A x, the ranks of all parts of all rows dealt out in blocks of four. */
static void run_shrink(tensor *a, int ith, int nth, void *user) {
    site *at = user;
    mixer_object *m = at->mixer;
    const tensor *x = a->src[1];
    const row_table *rows = table_of(m, x);
    if (!rows) return;
    int turn = 0;
    for (int i = 0; i < rows->n_items; i++) {
        const item *it = &rows->items[i];
        for (int p = 0; p < it->under.n_parts; p++)
            for (int r = it->first; r < it->first + it->n; r++)
                shrink_part(at, &it->under.parts[p], row_of(x, r), m->scratch[p][r], ith, nth, &turn);
    }
}

/* `out` of one part of one row: panels p_lo .. p_hi of its outputs. */
static void expand_part(const site *at, const part *p, const float *from, float *out, int64_t p_lo, int64_t p_hi) {
    const factors *f = &p->adapter->sites[at->index];
    float y[MAX_RANK];
    const float *ys[1] = { y };
    for (int k = 0; k < f->rank; k++) y[k] = from[k] * (f->scale * p->scale);
    if (f->rank) kernels.expand(f->b, at->n_out, f->rank, p_lo, p_hi, ys, 1, &out);
}

/* CUSTOM `out`, second half: out = res + B y, each thread its own range of outputs for all parts of all rows. */
static void run_expand(tensor *out, int ith, int nth, void *user) {
    site *at = user;
    mixer_object *m = at->mixer;
    const row_table *rows = table_of(m, out);
    const int64_t panels = (at->n_out + PANEL - 1) / PANEL, p_lo = panels * ith / nth, p_hi = panels * (ith + 1) / nth;
    bring_rows(out, p_lo * PANEL, p_hi * PANEL < at->n_out ? p_hi * PANEL : at->n_out);
    if (!rows) return;
    for (int i = 0; i < rows->n_items; i++) {
        const item *it = &rows->items[i];
        for (int p = 0; p < it->under.n_parts; p++)
            for (int r = it->first; r < it->first + it->n; r++)
                expand_part(at, &it->under.parts[p], m->scratch[p][r], row_of(out, r), p_lo, p_hi);
    }
}

/* --- rewriting the graph -------------------------------------------------------------------------------------------- */

static size_t entry_of(const tensor *t) { return ((uintptr_t) t >> 4) * 0x9E3779B97F4A7C15ull >> 51 & (N_ENTRIES - 1); }

/* The template's tensors live as long as the model: each is looked up by name once, by address ever after. */
static site *site_of(mixer_object *m, const tensor *lora_a) {
    size_t i = entry_of(lora_a);
    for (; m->entries[i].lora_a; i = (i + 1) & (N_ENTRIES - 1))
        if (m->entries[i].lora_a == lora_a) return m->entries[i].at;
    const size_t n = strlen(lora_a->name), suffix = strlen(".lora_a");
    if (n <= suffix || strcmp(lora_a->name + n - suffix, ".lora_a")) return NULL;
    for (int s = 0; s < m->n_sites; s++)
        if (strlen(m->sites[s].name) == n - suffix && !memcmp(m->sites[s].name, lora_a->name, n - suffix)) {
            m->entries[i] = (site_entry) { lora_a, &m->sites[s] };
            return &m->sites[s];
        }
    return NULL;
}

static void make_custom(mixer_object *m, tensor *t, custom_fun fun, site *at) {
    custom_params p;
    memset(&p, 0, sizeof p);
    p = (custom_params) { fun, N_THREADS_ALL, at };
    memcpy(t->op_params, &p, sizeof p);
    t->op = m->op.custom;
}

static bool overlap(const tensor *x, const tensor *y) {
    const char *x_lo = x->data, *x_hi = x_lo + x->nb[1] * x->ne[1], *y_lo = y->data, *y_hi = y_lo + y->nb[1] * y->ne[1];
    return x_lo < y_hi && y_lo < x_hi;
}

/* Enough rows to go round: every thread the same number, or so many that one more on some does not matter. */
static bool goes_round(int64_t n_rows, int n_threads) { return n_rows % n_threads == 0 || n_rows >= 3 * n_threads; }

static void rewrite(mixer_object *m, chain *c, tensor *out) {
    const tensor *x = c->a->src[1];
    const bool whole = goes_round(x->ne[1], m->n_threads) && !overlap(x, out) && out->data == out->src[0]->data;
    if (whole) c->a->op = m->op.none;
    else make_custom(m, c->a, run_shrink, c->at);
    c->b->op = c->s->op = m->op.none;
    make_custom(m, out, whole ? run_whole : run_expand, c->at);
    m->seen[c->at->index] = true;
    m->n_rewritten++;
}

static bool is_empty(const mixer_object *m, const tensor *t) {
    return t->op == m->op.none || t->op == m->op.reshape || t->op == m->op.view || t->op == m->op.permute || t->op == m->op.transpose;
}

/* cb_eval. Called with ask = true for every node of a split, in order, before any of them is computed. */
static bool on_node(tensor *t, bool ask, void *user) {
    mixer_object *m = user;
    chain *c = &m->open;
    if (!ask) return true;
    if (t->op == m->op.mul_mat) {
        site *at = site_of(m, t->src[0]);
        if (at) {
            m->n_broken += c->a != NULL;
            *c = (chain) { .a = t, .at = at };
            return false;
        }
        if (c->a && !c->b && t->src[1] == c->a) { c->b = t; return false; }
    }
    else if (!c->a || is_empty(m, t)) return false;
    else if (t->op == m->op.scale && c->b && !c->s && t->src[0] == c->b) { c->s = t; return false; }
    else if (t->op == m->op.add && c->s && t->src[1] == c->s) { rewrite(m, c, t); *c = (chain) { 0 }; return false; }
    if (c->a) { m->n_broken++; *c = (chain) { 0 }; }
    return false;
}

/* Tables are read from end to end in every step. Huge pages, where the system gives them, spare a TLB miss every 4 KiB; the
 * mapping starts on one and ends with the tables, so that no memory is held for the sake of alignment. */
static void *take_memory(size_t n_bytes) {
#if defined(__linux__)
    const size_t huge = (size_t) 2 << 20, page = 4096, size = (n_bytes + page - 1) / page * page;
    char *raw = mmap(NULL, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *start = (char *) (((uintptr_t) raw + huge - 1) & ~(uintptr_t) (huge - 1));
    if (start > raw) munmap(raw, start - raw);
    if (raw + huge > start) munmap(start + size, raw + huge - start);
    madvise(start, size, MADV_HUGEPAGE);
    return start;
#else
    return malloc(n_bytes);
#endif
}

static void give_memory(void *memory, size_t n_bytes) {
#if defined(__linux__)
    if (memory) munmap(memory, (n_bytes + 4095) / 4096 * 4096);
#else
    (void) n_bytes;
    free(memory);
#endif
}

/* --- Python: Adapter ------------------------------------------------------------------------------------------------ */

static bool get_buffer(PyObject *object, Py_buffer *view, Py_ssize_t n_bytes, const char *what) {
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE)) return false;
    if (view->len == n_bytes) return true;
    PyErr_Format(PyExc_ValueError, "%s holds %zd bytes, not %zd", what, view->len, n_bytes);
    PyBuffer_Release(view);
    return false;
}

static void pack_panels(half *to, const half *b, int64_t n_out, int rank) { /* b: n_out x rank, row-major */
    for (int64_t lo = 0; lo < n_out; lo += PANEL)
        for (int k = 0; k < rank; k++)
            for (int64_t j = lo; j < lo + PANEL; j++) *to++ = j < n_out ? b[j * rank + k] : 0;
}

static Py_ssize_t halves_of(int64_t n_in, int64_t n_out, int rank) { return rank * (n_in + (n_out + PANEL - 1) / PANEL * PANEL); }

typedef struct { int index, rank; long long n_in, n_out; float scale; PyObject *a, *b; } matrix_args;

static bool parse_matrix(PyObject *tuple, int n_sites, matrix_args *m) {
    if (!PyArg_ParseTuple(tuple, "iiLLfOO", &m->index, &m->rank, &m->n_in, &m->n_out, &m->scale, &m->a, &m->b)) return false;
    if (m->index < 0 || m->index >= n_sites || m->rank < 1 || m->rank > MAX_RANK || m->n_in < 1 || m->n_in > MAX_WIDTH ||
        m->n_out < 1 || m->n_out > MAX_WIDTH) {
        PyErr_Format(PyExc_ValueError, "matrix %d of rank %d, %lld x %lld is out of range", m->index, m->rank, m->n_in, m->n_out);
        return false;
    }
    return true;
}

static bool take_matrix(adapter_object *self, const matrix_args *m, half **free_memory) {
    Py_buffer a, b;
    if (halves_of(m->n_in, m->n_out, m->rank) > self->memory + self->n_bytes / (Py_ssize_t) sizeof(half) - *free_memory) {
        PyErr_SetString(PyExc_ValueError, "a matrix grew while it was read");
        return false;
    }
    if (!get_buffer(m->a, &a, m->n_in * m->rank * 2, "A")) return false;
    if (!get_buffer(m->b, &b, m->n_out * m->rank * 2, "B")) { PyBuffer_Release(&a); return false; }
    half *to_a = *free_memory, *to_b = to_a + m->n_in * m->rank;
    Py_BEGIN_ALLOW_THREADS
    memcpy(to_a, a.buf, a.len);
    pack_panels(to_b, b.buf, m->n_out, m->rank);
    Py_END_ALLOW_THREADS
    self->sites[m->index] = (factors) { to_a, to_b, m->rank, m->scale, (int) m->n_in, (int) m->n_out };
    *free_memory = to_a + halves_of(m->n_in, m->n_out, m->rank);
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    return true;
}

static int fill(adapter_object *self, int n_sites, PyObject *matrices) {
    matrix_args m;
    Py_ssize_t halves = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(matrices); i++) {
        if (!parse_matrix(PyTuple_GetItem(matrices, i), n_sites, &m)) return -1;
        halves += halves_of(m.n_in, m.n_out, m.rank);
    }
    self->n_sites = n_sites;
    self->n_bytes = halves * (Py_ssize_t) sizeof(half);
    self->sites = calloc(n_sites, sizeof *self->sites);
    self->memory = take_memory(self->n_bytes);
    if (!self->sites || !self->memory) { PyErr_NoMemory(); return -1; }
    half *free_memory = self->memory;
    for (Py_ssize_t i = 0; i < PyTuple_Size(matrices); i++)
        if (!parse_matrix(PyTuple_GetItem(matrices, i), n_sites, &m) || !take_matrix(self, &m, &free_memory)) return -1;
    return 0;
}

static int adapter_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    adapter_object *self = (adapter_object *) object;
    PyObject *list, *matrices;
    int n_sites;
    (void) kwargs;
    if (!PyArg_ParseTuple(args, "iO!", &n_sites, &PyList_Type, &list)) return -1;
    if (self->sites || n_sites < 1 || n_sites > MAX_SITES) { PyErr_SetString(PyExc_ValueError, "n_sites is out of range"); return -1; }
    if (!(matrices = PyList_AsTuple(list))) return -1; /* ours: nobody can change it while other threads run */
    const int status = fill(self, n_sites, matrices);
    Py_DECREF(matrices);
    return status;
}

static void adapter_dealloc(PyObject *object) {
    adapter_object *self = (adapter_object *) object;
    PyTypeObject *type = Py_TYPE(object);
    free(self->sites);
    give_memory(self->memory, self->n_bytes);
    ((freefunc) PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *adapter_n_bytes(PyObject *object, void *closure) {
    (void) closure;
    return PyLong_FromSsize_t(((adapter_object *) object)->n_bytes);
}

static PyGetSetDef adapter_getset[] = { { "n_bytes", adapter_n_bytes, NULL, "Bytes of its tables, padding included.", NULL }, { 0 } };
static PyType_Slot adapter_slots[] = { { Py_tp_init, adapter_init }, { Py_tp_dealloc, adapter_dealloc }, { Py_tp_getset, adapter_getset },
                                       { Py_tp_doc, "Adapter(n_sites, matrices): tables of one LoRA, ready to be used by rows." }, { 0 } };
static PyType_Spec adapter_spec = { "personae.engine._mixer.Adapter", sizeof(adapter_object), 0, Py_TPFLAGS_DEFAULT, adapter_slots };
static PyObject *adapter_type;

/* --- Python: Mixer -------------------------------------------------------------------------------------------------- */

static int mixer_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    mixer_object *m = (mixer_object *) object;
    PyObject *list;
    op_codes *op = &m->op;
    (void) kwargs;
    if (!PyArg_ParseTuple(args, "O!(iiiiiiiii)i", &PyList_Type, &list, &op->none, &op->mul_mat, &op->scale, &op->add, &op->custom,
                          &op->reshape, &op->view, &op->permute, &op->transpose, &m->n_threads)) return -1;
    const Py_ssize_t n = PyList_Size(list);
    if (m->sites || n < 1 || n > MAX_SITES || m->n_threads < 1) { PyErr_SetString(PyExc_ValueError, "sites or threads out of range"); return -1; }
    m->sites = calloc(n, sizeof *m->sites);
    m->seen = calloc(n, sizeof *m->seen);
    m->scratch = calloc(MAX_PARTS, sizeof *m->scratch);
    if (!m->sites || !m->seen || !m->scratch) { PyErr_NoMemory(); return -1; }
    for (Py_ssize_t i = 0; i < n; i++) {
        const char *name;
        long long n_in, n_out;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "sLL", &name, &n_in, &n_out)) return -1;
        if (n_in < 1 || n_in > MAX_WIDTH || n_out < 1 || n_out > MAX_WIDTH) { PyErr_Format(PyExc_ValueError, "%s is %lld x %lld", name, n_in, n_out); return -1; }
        if (strlen(name) >= sizeof m->sites[i].name) { PyErr_Format(PyExc_ValueError, "name too long: %s", name); return -1; }
        m->sites[i].mixer = m;
        m->sites[i].index = (int) i;
        m->sites[i].n_in = n_in;
        m->sites[i].n_out = n_out;
        strcpy(m->sites[i].name, name);
    }
    m->n_sites = (int) n;
    return 0;
}

static void mixer_dealloc(PyObject *object) {
    mixer_object *m = (mixer_object *) object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(m->held);
    free(m->sites);
    free(m->seen);
    free(m->scratch);
    ((freefunc) PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static bool same_voice(const voice *one, const voice *other) {
    if (one->n_parts != other->n_parts) return false;
    for (int p = 0; p < one->n_parts; p++)
        if (one->parts[p].adapter != other->parts[p].adapter || one->parts[p].scale != other->parts[p].scale) return false;
    return true;
}

/* Consecutive rows under one voice become items, small enough that each thread gets several. */
static void append_row(row_table *table, const voice *under, int most) {
    const int row = table->n_rows++;
    if (!under->n_parts) return;
    item *last = table->n_items ? &table->items[table->n_items - 1] : NULL;
    if (last && last->first + last->n == row && last->n < most && same_voice(&last->under, under)) last->n++;
    else table->items[table->n_items++] = (item) { *under, row, 1 };
}

/* Tables of other shapes than the graph's would be read past their end. */
static bool is_for(const mixer_object *m, const adapter_object *adapter) {
    if (adapter->n_sites != m->n_sites) return false;
    for (int s = 0; s < m->n_sites; s++) {
        const factors *f = &adapter->sites[s];
        if (f->rank && (f->n_in != m->sites[s].n_in || f->n_out != m->sites[s].n_out)) return false;
    }
    return true;
}

/* Of a float or an int only: nothing of Python's runs between the check of some rows and their taking, so nobody can change them there. */
static bool read_scale(PyObject *from, float *to) {
    if (!PyFloat_Check(from) && !PyLong_CheckExact(from)) { PyErr_SetString(PyExc_TypeError, "a scale is a float"); return false; }
    *to = (float) PyFloat_AsDouble(from);
    return !PyErr_Occurred();
}

/* A row's voice as Python gives it, ((adapter, scale), ...), checked. `to` may hold some of it when this fails. */
static bool read_voice(PyObject *parts, voice *to) {
    const Py_ssize_t n = PyTuple_Check(parts) ? PyTuple_Size(parts) : -1;
    to->n_parts = 0;
    if (n < 0) { PyErr_SetString(PyExc_TypeError, "a voice is a tuple of (adapter, scale)"); return false; }
    if (n > MAX_PARTS) { PyErr_Format(PyExc_ValueError, "a voice of %zd parts; at most %d", n, MAX_PARTS); return false; }
    for (; to->n_parts < n; to->n_parts++) {
        part *p = &to->parts[to->n_parts];
        PyObject *pair = PyTuple_GetItem(parts, to->n_parts), *scale;
        if (!PyTuple_Check(pair)) { PyErr_SetString(PyExc_TypeError, "a part of a voice is a tuple (adapter, scale)"); return false; }
        if (!PyArg_ParseTuple(pair, "O!O", adapter_type, &p->adapter, &scale) || !read_scale(scale, &p->scale)) return false;
    }
    return true;
}

static bool check_voice(const mixer_object *m, PyObject *parts, Py_ssize_t row) {
    voice under;
    if (!read_voice(parts, &under)) return false;
    for (int p = 0; p < under.n_parts; p++)
        if (!is_for(m, under.parts[p].adapter)) {
            PyErr_Format(PyExc_TypeError, "row %zd: not an adapter of this mixer", row);
            return false;
        }
    return true;
}

static bool check_rows(mixer_object *m, PyObject *voices, PyObject *wants) {
    const Py_ssize_t n = PyList_Size(wants);
    if (n < 1 || n > MAX_ROWS || PyTuple_Size(voices) != n) {
        PyErr_Format(PyExc_ValueError, "%zd rows: voices and wants must have one entry a row, at most %d", n, MAX_ROWS);
        return false;
    }
    if (!m->n_sites) { PyErr_SetString(PyExc_ValueError, "this mixer was not initialised"); return false; }
    PyObject *checked = NULL; /* a chunk's rows all have one voice */
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *parts = PyTuple_GetItem(voices, i);
        if (parts != checked && !check_voice(m, parts, i)) return false;
        if (!PyBool_Check(PyList_GetItem(wants, i))) { PyErr_Format(PyExc_TypeError, "row %zd: wants must be True or False", i); return false; }
        checked = parts;
    }
    return true;
}

/* `voices` is ours: nobody can change it between the check and the end of the graph that runs under it. */
static bool take_rows(mixer_object *m, PyObject *voices, PyObject *wants) {
    const Py_ssize_t n = PyTuple_Size(voices);
    const int most = n / (4 * m->n_threads) < 1 ? 1 : n / (4 * m->n_threads) > MAX_ITEM ? MAX_ITEM : (int) (n / (4 * m->n_threads));
    PyObject *read = NULL;
    voice under = { 0 };
    m->rows.n_rows = m->rows.n_items = m->outs.n_rows = m->outs.n_items = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *parts = PyTuple_GetItem(voices, i);
        if (parts != read && !read_voice(read = parts, &under)) return false;
        append_row(&m->rows, &under, most);
        if (PyList_GetItem(wants, i) == Py_True) append_row(&m->outs, &under, most);
    }
    return true;
}

static PyObject *mixer_set_rows(PyObject *object, PyObject *args) {
    mixer_object *m = (mixer_object *) object;
    PyObject *voices, *wants, *held;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &voices, &PyList_Type, &wants) || !(held = PyList_AsTuple(voices))) return NULL;
    if (!check_rows(m, held, wants)) { Py_DECREF(held); return NULL; }
    const bool taken = take_rows(m, held, wants);
    for (int s = 0; s < m->n_sites; s++) atomic_store_explicit(&m->sites[s].next, 0, memory_order_relaxed);
    Py_XDECREF(m->held);
    m->held = held;
    if (!taken || PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *mixer_set_threads(PyObject *object, PyObject *arg) {
    const long n = PyLong_AsLong(arg);
    if (n < 1) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "%ld threads", n);
    ((mixer_object *) object)->n_threads = (int) n;
    Py_RETURN_NONE;
}

static PyObject *mixer_counts(PyObject *object, PyObject *unused) {
    mixer_object *m = (mixer_object *) object;
    (void) unused;
    return Py_BuildValue("{s:l,s:l,s:l}", "rewritten", m->n_rewritten, "broken", m->n_broken, "misfits", atomic_load(&m->n_misfits));
}

static PyObject *mixer_seen(PyObject *object, PyObject *unused) {
    mixer_object *m = (mixer_object *) object;
    PyObject *list = PyList_New(0);
    (void) unused;
    for (int s = 0; list && s < m->n_sites; s++) {
        PyObject *name = m->seen[s] ? PyUnicode_FromString(m->sites[s].name) : NULL;
        if (name) { PyList_Append(list, name); Py_DECREF(name); }
    }
    return list;
}

static PyObject *mixer_callback(PyObject *object, void *closure) {
    (void) object; (void) closure;
    return PyLong_FromVoidPtr((void *) on_node);
}

static PyObject *mixer_user_data(PyObject *object, void *closure) {
    (void) closure;
    return PyLong_FromVoidPtr(object);
}

static PyMethodDef mixer_methods[] = {
    { "set_rows", mixer_set_rows, METH_VARARGS, "set_rows(voices, wants): the rows of the coming llama_decode." },
    { "set_threads", mixer_set_threads, METH_O, "set_threads(n): how many threads the next new graph is laid out for." },
    { "counts", mixer_counts, METH_NOARGS, "counts(): chains rewritten, chains not recognised, nodes whose rows did not fit." },
    { "seen", mixer_seen, METH_NOARGS, "seen(): names of the matrices met in a graph." },
    { 0 } };
static PyGetSetDef mixer_getset[] = { { "callback", mixer_callback, NULL, "Address for cb_eval.", NULL },
                                      { "user_data", mixer_user_data, NULL, "Address for cb_eval_user_data.", NULL }, { 0 } };
static PyType_Slot mixer_slots[] = { { Py_tp_init, mixer_init }, { Py_tp_dealloc, mixer_dealloc }, { Py_tp_methods, mixer_methods },
                                     { Py_tp_getset, mixer_getset }, { Py_tp_doc, "Mixer(sites, op_codes, n_threads)" }, { 0 } };
static PyType_Spec mixer_spec = { "personae.engine._mixer.Mixer", sizeof(mixer_object), 0, Py_TPFLAGS_DEFAULT, mixer_slots };

/* --- Python: the module --------------------------------------------------------------------------------------------- */

static PyObject *probe(PyObject *module, PyObject *arg) {
    const tensor *t = PyLong_AsVoidPtr(arg);
    (void) module;
    if (!t) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no tensor");
    custom_params p;
    memcpy(&p, t->op_params, sizeof p);
    return Py_BuildValue("{s:i,s:(LLLL),s:(nnnn),s:i,s:N,s:N,s:N,s:N,s:y#,s:N,s:i,s:N}", "type", t->type, "ne", t->ne[0], t->ne[1], t->ne[2],
                         t->ne[3], "nb", t->nb[0], t->nb[1], t->nb[2], t->nb[3], "op", t->op, "src0", PyLong_FromVoidPtr(t->src[0]), "src1",
                         PyLong_FromVoidPtr(t->src[1]), "view_src", PyLong_FromVoidPtr(t->view_src), "data", PyLong_FromVoidPtr(t->data),
                         "name", t->name, (Py_ssize_t) strnlen(t->name, sizeof t->name), "custom_fun", PyLong_FromVoidPtr((void *) p.fun), "custom_tasks", p.n_tasks,
                         "custom_user", PyLong_FromVoidPtr(p.user));
}

static PyObject *use_kernels(PyObject *module, PyObject *arg) {
    const char *wanted = NULL;
    (void) module;
    if (arg != Py_None && !(wanted = PyUnicode_AsUTF8AndSize(arg, NULL))) return NULL;
    if (!choose_kernels(wanted)) return PyErr_Format(PyExc_ValueError, "no kernels '%s' on this CPU", wanted);
    return PyUnicode_FromString(kernels.name);
}

static bool has_matrix(const adapter_object *adapter, int index, long long n_in, long long n_out) {
    if (index < 0 || index >= adapter->n_sites) return false;
    const factors *f = &adapter->sites[index];
    return f->rank && f->n_in == n_in && f->n_out == n_out;
}

/* delta(voice, site, n_in, n_out, x) -> bytes: one row through the very kernels the graph uses, for the NumPy oracle. */
static PyObject *delta(PyObject *module, PyObject *args) {
    item it = { .n = 1 };
    int index;
    long long n_in, n_out;
    Py_buffer x;
    PyObject *parts, *object, *result = NULL;
    (void) module;
    if (!PyArg_ParseTuple(args, "OiLLO", &parts, &index, &n_in, &n_out, &object) || !read_voice(parts, &it.under)) return NULL;
    bool fits = n_in > 0 && n_in <= MAX_WIDTH && n_out > 0 && n_out <= MAX_WIDTH;
    for (int p = 0; p < it.under.n_parts; p++) fits = fits && has_matrix(it.under.parts[p].adapter, index, n_in, n_out);
    if (!fits) return PyErr_Format(PyExc_ValueError, "no matrix %d of %lld x %lld", index, n_in, n_out);
    if (!get_buffer(object, &x, n_in * (Py_ssize_t) sizeof(float), "x")) return NULL;
    float *out = calloc(n_out, sizeof *out);
    if (out) {
        const site at = { .index = index, .n_in = n_in, .n_out = n_out };
        const tensor in = { .data = x.buf };
        tensor to = { .data = out };
        add_item(&at, &it, &in, &to);
        result = PyBytes_FromStringAndSize((char *) out, n_out * (Py_ssize_t) sizeof *out);
        free(out);
    }
    PyBuffer_Release(&x);
    return result ? result : PyErr_NoMemory();
}

static PyMethodDef module_methods[] = {
    { "probe", probe, METH_O, "probe(address): the fields of a ggml tensor as this module sees them." },
    { "use_kernels", use_kernels, METH_O, "use_kernels(name or None): choose the inner loops; returns the name of those chosen." },
    { "delta", delta, METH_VARARGS, "delta(voice, site, n_in, n_out, x): the sum of B A x * scale of one row, as float32 bytes." },
    { 0 } };
static struct PyModuleDef module_def = { PyModuleDef_HEAD_INIT, "_mixer", "One decode, many adapters.", -1, module_methods, 0, 0, 0, 0 };

PyMODINIT_FUNC PyInit__mixer(void) {
    PyObject *module = PyModule_Create(&module_def), *mixer_type = NULL;
    choose_kernels(NULL);
    if (!module) return NULL;
    adapter_type = PyType_FromSpec(&adapter_spec);
    mixer_type = PyType_FromSpec(&mixer_spec);
    if (!adapter_type || !mixer_type || PyModule_AddObjectRef(module, "Adapter", adapter_type) || PyModule_AddObjectRef(module, "Mixer", mixer_type) ||
        PyModule_AddIntConstant(module, "MAX_RANK", MAX_RANK) || PyModule_AddIntConstant(module, "MAX_ROWS", MAX_ROWS) ||
        PyModule_AddIntConstant(module, "MAX_SITES", MAX_SITES) || PyModule_AddIntConstant(module, "MAX_PARTS", MAX_PARTS)) {
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(mixer_type);
    return module;
}
