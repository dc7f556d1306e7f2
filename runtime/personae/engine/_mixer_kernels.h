/* The two inner loops of the mixer, written once over a handful of vector words and included once for each instruction set.
 *
 * The includer defines: K(name), TARGET, VW (lanes), V (a vector of VW floats), V_ZERO, V_SET1(f), V_LOADF(p), V_STOREF(p, v),
 * V_LOADH(p) (VW halves widened), V_FMA(a, b, c) = a * b + c, V_SUM(v) (horizontal).
 *
 * Rule that always holds: what a row computes depends on that row, its adapter and the instruction set alone. Rows and ranks are
 * taken several at a time only to widen each half once for all of them; every (row, rank) pair keeps one accumulator that walks
 * its inputs in the same order whatever stands beside it. That is what makes a row bit-identical in any company.
 */

/* y[t][k] = A[k] . x[t] for nk rows of A (stride n_in) and nt rows of x. nk and nt are constants where this is inlined. */
TARGET static inline __attribute__((always_inline)) void K(dot_block)(const half *a, int64_t n_in, int nk, const float *const *x, int nt,
                                                                       float *const *y) {
    V acc[8];
    for (int i = 0; i < nk * nt; i++) acc[i] = V_ZERO;
    int64_t i = 0;
    for (; i + VW <= n_in; i += VW)
        for (int k = 0; k < nk; k++) {
            const V w = V_LOADH(a + k * n_in + i);
            for (int t = 0; t < nt; t++) acc[k * nt + t] = V_FMA(w, V_LOADF(x[t] + i), acc[k * nt + t]);
        }
    for (int k = 0; k < nk; k++)
        for (int t = 0; t < nt; t++) {
            float sum = V_SUM(acc[k * nt + t]);
            for (int64_t j = i; j < n_in; j++) sum += half_to_float(a[k * n_in + j]) * x[t][j];
            y[t][k] = sum;
        }
}

/* y[t][k_lo..k_hi) for nt (1 or 2) rows of x. */
TARGET static void K(shrink)(const half *a, int64_t n_in, int k_lo, int k_hi, const float *const *x, int nt, float *const *y) {
    float *at[2] = { y[0], y[0] };
    for (int k = k_lo, step; k < k_hi; k += step) {
        for (int t = 0; t < nt; t++) at[t] = y[t] + k;
        const half *row = a + (int64_t) k * n_in;
        step = k_hi - k >= 4 ? 4 : 1;
        if (nt == 1 && k_hi - k >= 8) K(dot_block)(row, n_in, step = 8, x, 1, at);
        else if (nt == 1 && step == 4) K(dot_block)(row, n_in, 4, x, 1, at);
        else if (nt == 1) K(dot_block)(row, n_in, 1, x, 1, at);
        else if (step == 4) K(dot_block)(row, n_in, 4, x, 2, at);
        else K(dot_block)(row, n_in, 1, x, 2, at);
    }
}

/* out[t][0..PANEL) += sum over k of y[t][k] * panel[k][0..PANEL); the panel is contiguous, rank x PANEL halves. */
TARGET static inline __attribute__((always_inline)) void K(panel_block)(const half *panel, int rank, const float *const *y, int nt,
                                                                         float *const *out) {
    enum { NV = PANEL / VW };
    V acc[2 * NV];
    for (int i = 0; i < nt * NV; i++) acc[i] = V_ZERO;
    for (int k = 0; k < rank; k++)
        for (int v = 0; v < NV; v++) {
            const V w = V_LOADH(panel + k * PANEL + v * VW);
            for (int t = 0; t < nt; t++) acc[t * NV + v] = V_FMA(V_SET1(y[t][k]), w, acc[t * NV + v]);
        }
    for (int t = 0; t < nt; t++)
        for (int v = 0; v < NV; v++) V_STOREF(out[t] + v * VW, V_ADD(V_LOADF(out[t] + v * VW), acc[t * NV + v]));
}

/* out[t][j] += B[j] . y[t] for the outputs of panels p_lo..p_hi), nt (1 or 2) rows. */
TARGET static void K(expand)(const half *b, int64_t n_out, int rank, int64_t p_lo, int64_t p_hi, const float *const *y, int nt,
                             float *const *out) {
    float tail[2][PANEL], *to[2] = { out[0], out[0] };
    for (int64_t p = p_lo; p < p_hi; p++) {
        const int64_t lo = p * PANEL, n = n_out - lo < PANEL ? n_out - lo : PANEL;
        for (int t = 0; t < nt; t++) {
            to[t] = n == PANEL ? out[t] + lo : memset(tail[t], 0, sizeof tail[t]);
            if (n < PANEL) memcpy(tail[t], out[t] + lo, n * sizeof(float));
        }
        if (nt == 1) K(panel_block)(b + lo * rank, rank, y, 1, to);
        else K(panel_block)(b + lo * rank, rank, y, 2, to);
        if (n < PANEL)
            for (int t = 0; t < nt; t++) memcpy(out[t] + lo, tail[t], n * sizeof(float));
    }
}

#undef K
#undef TARGET
#undef VW
#undef V
#undef V_ZERO
#undef V_SET1
#undef V_LOADF
#undef V_STOREF
#undef V_LOADH
#undef V_FMA
#undef V_ADD
#undef V_SUM
