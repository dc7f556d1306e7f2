"""Chat templates in the manner of those that come with models: each has a habit that once broke somebody's prompt."""

CHATML = (  # brings a system prompt of its own when none is given
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are an assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

HEADERS = """
{{- bos_token }}
{%- if tools is not none %}{{- raise_exception('no tools here') }}{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{{- 'Today: ' + strftime_now('%d %b %Y') + '\n\n' }}
{{- system_message }}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

NO_SYSTEM = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

INST = (  # no generation prompt; the persona would move along with the last line
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}"
    "{%- else %}{%- set rest = messages %}{%- endif %}{{- bos_token }}"
    "{%- for message in rest %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}{%- if loop.last and system is defined %}"
    "{{- '[INST] ' + system + '\n\n' + message['content'] + ' [/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + ' [/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)

DEAF = (  # knows no add_generation_prompt
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)

THINKING = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)

TYPED = (  # for models with eyes: contents must be lists of typed parts
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TRAINING = (  # marks what is trained on, and leaves its loop by a break
    "{% for m in messages %}{% if m.role == 'never' %}{% break %}{% endif %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n\n{% else %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

USABLE = {
    "chatml": CHATML,
    "headers": HEADERS,
    "no_system": NO_SYSTEM,
    "inst": INST,
    "deaf": DEAF,
    "thinking": THINKING,
    "typed": TYPED,
    "training": TRAINING,
    "built_in": "",
}

UNUSABLE = {
    "shouts": CHATML.replace("message['content']", "message['content'] | upper"),
    "escapes": CHATML.replace("message['content']", "message['content'] | e | string"),
    "quotes": CHATML.replace("message['content']", "message['content'] | tojson"),
    "squeezes": CHATML.replace("message['content']", "message['content'].split() | join(' ')"),
    "repeats": CHATML.replace("message['content']", "message['content'] + message['content']"),
    "drops": CHATML.replace("message['content']", "''"),
    "reverses": CHATML.replace("in messages %}", "in messages | reverse %}"),
    "counts": CHATML.replace("'<|im_start|>' +", "'[round ' + loop.index | string + ']' +"),
    "raises": "{{ raise_exception('never') }}",
    "unknown filter": "{{ messages | no_such_filter }}",
    "not jinja": "{% for",
    "divides": "{{ 1 // 0 }}",
    "recurses": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "includes": "{% include '/etc/passwd' %}",
    "class walk": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals walk": "{{ raise_exception.__globals__['__builtins__']['open']('x') }}",
    "format walk": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "changes messages": "{{ messages.clear() }}",
    "environment walk": "{{ self._TemplateReference__context.environment }}{{ messages.append(1) }}",
    "huge range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "branching macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "literal flood": "{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
    "written flood": "{% set x = 'x' * 100000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "captured flood": "{% macro m() %}{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}{% endmacro %}{% set x = m() %}",
    "doubling": "{% set n = namespace(s='xy') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by tilde": "{% set n = namespace(s='xy') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling by set": "{% set n = namespace(s='xy') %}{% for i in range(60) %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}"
    "{% endfor %}",
    "product": "{{ 'x' * 10000000000 }}",
    "product, turned": "{{ 10000000000 * ['x'] }}",
    "power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "wide format": "{{ '%9999999999d' % 1 }}",
    "too long": "x" * 300_000,
}
