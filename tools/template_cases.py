"""Templates that cover every construct of the chat template language, and the message lists that
they are rendered with.

The published formats (section "formats") are written from their descriptions, not copied from a
model.
"""

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place \"now\", 東京 too",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 3}, "exact": {"enum": [True, None, 1.5]}},
            "required": ["place"],
        },
    },
}

VARS = {
    "s": "Hello World", "empty": "", "uni": "Grüße, 東京! 👩‍🚀 ñ", "multi": "  one\n two\r\n\tthree \n", "quote": "it's \"q\" \\ \n\t\x00\x7f é",
    "n": 7, "neg": -3, "zero": 0, "f": 2.5, "small": 1e-7, "big": 1e22, "third": 1 / 3, "yes": True, "no": False, "nil": None,
    "xs": [3, 1, 2], "none_list": [], "words": ["pear", "Apple", "fig", "apple"], "mixed": [1, "a", None, 2.0, True, [1, 2], {"k": "v"}],
    "d": {"a": 1, "b": [1, 2], "items": "shadow", "c": {"x": {"y": "deep"}}}, "e": {},
    "people": [{"name": "Bo", "age": 30, "tags": ["x"]}, {"name": "al", "age": 25}, {"name": "Cy", "age": 30, "tags": []}],
    "tool": TOOL, "nested": [[1, [2, 3]], [4, []]], "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
}

EXPRESSIONS = """
1 + 2 * 3 - 4 / 2 | 7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3 | 2 ** 3 ** 2, -2 ** 2 | 7.5 // 2, -7.5 % 2, 1e3, 1.5e-5 | 0x1f + 0b11 + 0o17 + 1_000
1 / 3 | 10 / 5 | 0.1 + 0.2 | 1e16 | 1e15 | 123456789012345680.0 | 1e-4 | 0.00001 | -0.0 | 1.0 | 100.0 * 1.1 | big | small | third | 5e-324 | 1.7976931348623157e308 | 2.0 ** 70
'a' 'b' "c" | 'tab\\tnl\\nq\\'dq\\"bs\\\\u\\u00e9x\\x41o\\101' | '\\d \\é \\
end' | "it's" | 'say "x"'
n > 3 and n < 10 | n == 7.0 | '7' == 7 | true == 1 | none == false | xs == [3, 1, 2] | (1, 2) == [1, 2] | d == d | 1 < 2 < 3 | 1 < 3 < 2 | 'a' < 'b' | [1, 2] < [1, 3] | 'é' > 'z'
not yes, not no, not not yes | not 1 == 2 | n or 5 | zero or 'x' | empty and 1 | nil or none_list or 'last' | true and 'v'
'ell' in s | 'x' not in s | 1 in xs | 9 not in xs | 'a' in d | 'zz' in d | nil in mixed | undef in xs | 'x' in undef | 1 in (1, 2) | 3 in range(5)
'a' if n > 5 else 'b' | 'a' if n > 9 | ('x' if no) is defined | 'a' if no else 'b' if no else 'c' | (1 if yes else 2) + 1
s[0], s[-1], s[99] | s[1:4], s[:3], s[3:], s[::-1], s[::2], s[-3:], s[5:2], s[:-3], s[10:0:-3] | uni[0:5], uni[::-1], uni[-1], uni[7] | xs[0], xs[-1], xs[1:], xs[::-1], xs[:99], xs[-99:2]
(1, 2, 3)[1:], (1,), (), (1, 2)[0] | range(10)[2], range(10)[2:5], range(10)[::-2], range(5), range(2, 9, 3), range(3, 0, -1) | range(10)[::3] | list
d.a, d['a'], d.c.x.y, d['c']['x'].y, d.zz, d['zz'], d.items() | d['items'] | d.b.0, d.b[1], nested.0.1.0 | tool.function.parameters.required[0] | mixed[-1].k
[1, 'a', 2.0, none, true, [], {}, ()] | {'a': 1, 2: 'b', (1, 2): [3], none: none, 1.5: 2} | {} | [] | {'a': {'b': {'c': [1]}}} | [[[]]] | {1: 'a', true: 'b', 1.0: 'c'}
s ~ n ~ f ~ nil ~ yes ~ xs | 'a' ~ 1 + 2 | 1 ~ 2 * 3 | undef ~ 'x' | 'a' * 3, 3 * 'ab', [1] * 2, (1,) * 2, 'x' * 0, 'x' * -1
-n, +n, - -n, -f, -yes | -1 | abs | (-1) | abs | -n | abs | 2 - -2
xs + [4], (1,) + (2,), 'a' + 'b' | none_list + none_list | true + true | 1 + true
'%s and %s' % (s, n) | '%d%%' % 5 | '%5.2f|%-6d|%06d|%+d|%x|%X|%#x|%o|%e|%g' % (f, n, n, n, 255, 255, 255, 8, 12345.678, 0.0001) | '%r %s' % (quote, quote) | '%(a)s-%(b)s' % d | '%c%c' % (65, 'é') | '%.2s|%5s|%-5s|' % ('abc', 'x', 'y') | '%s' % xs | '%s' % nil
yes | no | nil | n | f | s | uni | xs | mixed | d | quote | [quote] | tool | e | people | none_list | (1,) | ((1, 'b'),) | undef | [undef] | [nil, 'é', '\\u200b', '\\x07', '💥', "'", '"', '\\'"']
d.items() | d.keys() | d.values() | e.items() | d.items() | list | d | list | d.get('a'), d.get('zz'), d.get('zz', 5), d.get('zz', default=5) if false else '' | d.keys() | list
loop is defined | self_undefined is undefined | messages is defined | tools is none | documents is none
namespace(a=1) is mapping | namespace(a=1).a, namespace(a=1).b is defined | namespace({'x': 2}, y=3).x | dict(a=1, b=2) | dict({'a': 1}, c=3) | dict([('a', 1), ['b', 2]])
range(3) | join(',') | range(1, 4) | list | range(5) | sum | range(0) | list | range(3) | length
s is string and n is number and xs is iterable and d is mapping | (1, 2) | length | (n) | string | ((1), (2, 3)) | length
"""

TESTS = """
{v} is defined | {v} is undefined | {v} is none | {v} is string | {v} is mapping | {v} is iterable | {v} is sequence | {v} is number | {v} is integer | {v} is float | {v} is boolean | {v} is true | {v} is false | {v} is callable | {v} is not none | {v} is not string
"""
TEST_VALUES = ["s", "empty", "n", "zero", "f", "yes", "no", "nil", "xs", "none_list", "d", "e", "(1, 2)", "range(3)", "undef", "d.zz", "d.items()", "namespace()", "xs | select('odd')", "s.strip", "range"]

MORE_TESTS = """
n is odd, n is even, neg is odd, f is odd, zero is even | n is divisibleby 7, n is divisibleby(2), 9 is divisibleby 3 | n is eq 7, n is equalto 7, n is ne 7, 'a' is eq('a') | n is gt 3, n is ge 7, n is lt 7, n is le 7, n is greaterthan 7, n is lessthan 8
'a' is in 'abc', 1 is in [1], 5 is in xs, 'a' is in(d) | yes is sameas true, nil is sameas none, n is sameas 7, xs is sameas xs | 'upper' is filter, 'nope' is filter, 'odd' is test, 'nope' is test | 'ABC' is upper, 'abc' is lower, 'aBc' is lower, '1' is upper, 'É' is upper
s is string is defined if false else 1 | not n is odd | n is not odd | (n is odd) and (zero is even) | n is odd and zero is even or nil is none | s is defined and s is string | 3 is not divisibleby 2
"""

FILTERS = """
s | upper, s | lower, s | capitalize, s | title, 'foo-bar baz(qux) {x [y <z it\\'s' | title | uni | upper, uni | lower, uni | capitalize, uni | title | 'straße ŉ ﬁ ΑΣ ΣΑΣ İI ǆ Ǆ' | upper | 'STRASSE ΑΣ ΣΑΣ. İI Ǆ' | lower | 'ǆx ß' | capitalize | n | upper
multi | trim | '  x ' | trim, 'xxaxx' | trim('x'), 'abcba' | trim('ab') | '\\u2003x\\u00a0\\u3000' | trim | nil | trim | n | trim
s | length, uni | length, xs | length, d | length, none_list | length, undef | length, (1, 2) | count | range(4) | length
xs | first, xs | last, s | first, s | last, d | first, d | last, none_list | first, none_list | last, undef | first | uni | first
xs | join, xs | join(', '), words | join('-'), mixed | join('|'), d | join(','), s | join(' '), undef | join, people | join(', ', attribute='name') | [nil, yes, 1.0] | join(';')
xs | sort, words | sort, words | sort(case_sensitive=true), xs | sort(reverse=true), people | sort(attribute='age') | map(attribute='name') | list, people | sort(attribute='age,name') | map(attribute='name') | list | people | sort(attribute='name', reverse=true) | map(attribute='name') | join
xs | reverse | list, s | reverse, uni | reverse, (1, 2) | reverse | list, range(3) | reverse | list, d | reverse | list, none_list | reverse | list
words | unique | list, words | unique(case_sensitive=true) | list, [1, 1.0, true, '1'] | unique | list | people | unique(attribute='age') | map(attribute='name') | list
xs | min, xs | max, words | min, words | max, words | max(case_sensitive=true), none_list | min, people | max(attribute='age') | string | xs | sum, people | sum(attribute='age'), [1.5, 2] | sum, none_list | sum, xs | sum(start=10), [[1], [2]] | sum(start=[])
d | dictsort, {'b': 1, 'A': 2} | dictsort, {'b': 1, 'A': 2} | dictsort(true), {'b': 1, 'A': 2} | dictsort(by='value'), {'b': 1, 'A': 2} | dictsort(reverse=true) | e | dictsort
d | items | list, e | items | list, undef | items | list, tool | items | list | length | d | list, s | list, uni | list, xs | list, undef | list, (1, 2) | list
undef | default('x'), nil | default('x'), nil | default('x', true), empty | default('x', boolean=true), undef | d, undef | d('y') | d.zz | default(d.a) | zero | default(5, true)
xs | map('string') | list, words | map('upper') | join(','), people | map(attribute='name') | list, people | map(attribute='tags', default='none') | list, people | map(attribute='tags.0') | list, nested | map('length') | list, words | map('replace', 'a', 'b') | list, none_list | map('upper') | list | [' a ', 'b '] | map('trim') | list | people | map(attribute='zz', default=0) | sum
xs | select('odd') | list, xs | select('gt', 1) | list, mixed | select | list, mixed | select('string') | list, mixed | reject('none') | list, mixed | reject | list, xs | reject('equalto', 1) | list, xs | select('in', [1, 2]) | list, xs | select('>', 1) | list, xs | select('==', 3) | first
people | selectattr('age', 'equalto', 30) | map(attribute='name') | list, people | selectattr('tags') | list | length, people | selectattr('tags', 'defined') | list | length, people | rejectattr('age', 'lt', 30) | map(attribute='name') | list, people | rejectattr('tags') | map(attribute='name') | list, people | selectattr('tags', 'undefined') | map(attribute='name') | first, people | selectattr('name', 'in', ['Bo', 'Cy']) | list | length
d | tojson, mixed | tojson, quote | tojson, uni | tojson, uni | tojson(ensure_ascii=true), tool | tojson, e | tojson, none_list | tojson, nil | tojson, yes | tojson, f | tojson, big | tojson, '</script>&\\'' | tojson | (1, 2) | tojson | {1: 2, none: 3, true: 4, 1.5: 5} | tojson | '\\u2028\\x7f\\x1f💥' | tojson, '\\x7f💥é' | tojson(true)
d | tojson(indent=2) | tool | tojson(indent=4) | [] | tojson(indent=2) | {'a': []} | tojson(indent=2) | [1, [2, {}], {'a': 1}] | tojson(indent=1) | d | tojson(indent='--') | xs | tojson(indent=0) | {'b': 1, 'a': 2} | tojson(sort_keys=true) | d | tojson(separators=(',', ':')) | d | tojson(indent=2, separators=(';', '='))
multi | indent, multi | indent(2), multi | indent(2, true), 'a\\n\\nb' | indent(2, blank=true), 'a\\n\\nb\\n' | indent, 'a\\n\\nb\\n' | indent(3, false, true), '' | indent, 'x' | indent('> '), 'a\\nb' | indent('> ', first=true), 'a\\r\\nb\\x0bc' | indent(1)
s | replace('o', '0'), s | replace('o', '0', 1), s | replace('', '-'), s | replace('l', ''), 'aaa' | replace('aa', 'b'), n | replace(7, 8), 'abc' | replace('', '-', 2), uni | replace('ü', 'ue')
neg | abs, f | abs, -2.5 | abs | 2.567 | round(2), 2.5 | round, 3.5 | round, 2.567 | round(1, 'ceil'), 2.567 | round(1, 'floor'), 7 | round, 2.675 | round(2), -2.5 | round, 1.5 | round(method='floor')
'42' | int, ' 42 ' | int, '4x' | int, '4x' | int(9), '3.9' | int, 3.9 | int, -3.9 | int, yes | int, nil | int, '0x1f' | int(base=16), 'ff' | int(0, 16), '1_000' | int, '' | int, '1e3' | int, '-7' | int, '+7' | int | '3.5' | float, 'x' | float, 'x' | float(1.5), 3 | float, '1e3' | float, ' 2 ' | float, nil | float, 'inf' | float, '-inf' | float, '1_0.5' | float
n | string, f | string, nil | string, xs | string, undef | string, yes | string | length | '%s-%s' | format('a', 1), '%(x)s' | format(x=5), 'plain' | format
s | safe | d | tojson | safe | s | upper | lower | title | trim | length | string | xs | sort | first | string | length | d | attr('get') is callable, d | attr('a') is defined | xs | list | list | tojson
words | map('lower') | unique | sort | join(' ') | people | map(attribute='name') | map('lower') | select('ne', 'al') | join | d.items() | map('first') | join, d.items() | list | tojson
"""

METHODS = """
multi.strip(), multi.lstrip(), multi.rstrip(), 'xxaxx'.strip('x'), 'xxaxx'.lstrip('x'), 'xxaxx'.rstrip('x'), 'abc'.strip('') , ' a '.strip(none) | '\\n\\n a\\n'.strip('\\n') | 'éaé'.strip('é') | '</think>x'.lstrip('</think>')
s.split(), multi.split(), 'a,b,,c'.split(','), 'a,b,c'.split(',', 1), ' a b  c '.split(none, 1), ''.split(), ''.split(','), 'a<t>b<t>c'.split('<t>')[-1], 'a  b '.split(' '), 'abc'.split('x'), ' a b  c '.rsplit(none, 1), 'a,b,c'.rsplit(',', 1), 'a,b'.rsplit(','), '東 京'.split(), 'a b'.split(maxsplit=0), 'x y'.split(sep=' ')
multi.splitlines(), 'a\\nb\\r\\nc\\rd\\x0be\\u2028f'.splitlines(), ''.splitlines(), 'a\\n'.splitlines(true), '\\n\\n'.splitlines()
s.startswith('He'), s.startswith('x'), s.endswith('ld'), s.endswith(('x', 'd')), s.startswith(''), s.startswith(('a', 'H')), uni.endswith('ñ') | 'abc'.removeprefix('ab'), 'abc'.removesuffix('bc'), 'abc'.removeprefix('x'), 'abc'.removesuffix('')
s.upper(), s.lower(), s.title(), s.capitalize(), uni.upper(), "they're bill's".title(), 'ǆ ß'.title(), 'ß'.upper()
s.replace('l', 'L'), s.replace('l', 'L', 1), s.replace('', '.'), 'aXbX'.replace('X', '')
s.find('o'), s.find('o', 5), s.find('zz'), s.rfind('o'), s.find('o', 0, 3), uni.find('東'), uni.rfind('ñ'), s.find('', 3), s.find('', 99), s.index('W'), s.count('l'), s.count(''), 'aaaa'.count('aa'), s.find('l', -3), s.rfind('l', 0, -2)
', '.join(['a', 'b']), ''.join(words), '-'.join('abc'), ','.join(d), ','.join([])
s.partition(' '), s.partition('x'), s.rpartition('o'), s.rpartition('x')
'abc'.isalpha(), 'ab1'.isalnum(), '12'.isdigit(), ''.isdigit(), ' \\n'.isspace(), 'abc'.islower(), 'ABC'.isupper(), 'é1'.isalpha(), '１２'.isdigit(), 'aB'.islower(), 'a1'.islower(), '１'.isalnum()
'<{}|{}>'.format(1, 'é'), '{0}{1}{0}'.format('x', 2.5), '{a} {b.name}'.format(a=none, b=people[0]), '{0[name]}: {0.tags[0]}'.format(people[0]), '{!r} {!s}'.format('q', 'q'), '{{}} }}{{ {}'.format(true), 'plain'.format(1), ''.format(), '{}{}'.format(xs, d.e), '{x[0]}{x[2]}'.format(x=xs), '{:}'.format(1), '{0.zz}|'.format(d)
xs.index(2), xs.count(1), (1, 1).count(1), (3, 4).index(4), xs.copy(), d.copy().a
d.get('c').get('x', {}).y, d.keys() | length, d.values() | list | length, e.get('x') is none, people[0].get('name').upper().lower()[0]
"""

# Whole templates: {name: source}; rendered with VARS.
STATEMENTS = {
    "what is unknown where nothing goes": "{% if no %}{{ s | nope }}{% elif n is nope_test and no %}{% else %}a{% endif %}",
    "what is unknown in an expression": "{{ (s | nope) if no else 'b' }}{{ 'c' if no and (s is nope) else 'd' }}{{ 'e' if yes or (s | nope) }}",
    "a method that the sandbox hides": "{% if no %}{{ xs.append(1) }}{{ xs.pop(0) }}{{ d.update(e) }}{% endif %}{% for x in xs if no %}{{ xs.insert(0, x) }}{% endfor %}f",
    "if": "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}|{% if no %}x{% endif %}|{% if no %}a{% elif yes %}b{% endif %}|{% if no %}a{% elif no %}b{% elif no %}c{% else %}d{% endif %}|{% if not xs %}{% else %}ok{% endif %}",
    "if_nested": "{% if yes %}{% if no %}a{% else %}b{% if n %}c{% endif %}{% endif %}{% endif %}",
    "for": "{% for x in xs %}{{ x }},{% endfor %}|{% for x in none_list %}x{% else %}empty{% endfor %}|{% for c in uni %}{{ c }}.{% endfor %}|{% for k in d %}{{ k }} {% endfor %}|{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for i in range(3) %}{{ i }}{% endfor %}|{% for x in undef %}x{% else %}u{% endfor %}",
    "for_loop": "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.previtem is defined }}{{ loop.cycle('a', 'b', 'c') }}\n{% endfor %}",
    "for_changed": "{% for p in people %}{{ loop.changed(p.age) }}{{ loop.changed(p.age, 1) }} {% endfor %}{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}",
    "for_if": "{% for x in xs if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}|{% for x in xs if x > 9 %}x{% else %}none{% endfor %}|{% for k, v in d.items() if v is string %}{{ k }}{% endfor %}",
    "for_nested": "{% for row in nested %}{% for x in row %}{{ loop.index }}{{ x }}{% endfor %}{{ loop.index }};{% endfor %}{% for a in xs %}{% set outer = loop %}{% for b in xs %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "for_unpack": "{% for a, (b, c) in [(1, (2, 3)), [4, 'xy']] %}{{ a }}{{ b }}{{ c }} {% endfor %}{% for (a, b) in [[1, 2]] %}{{ a }}{{ b }}{% endfor %}",
    "for_recursive": "{% for t in tree recursive %}[{{ t.v }}@{{ loop.depth }}{{ loop(t.kids) }}]{% else %}.{% endfor %}",
    "for_scope": "{% set x = 'outer' %}{% for i in xs %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}{% for i in xs %}{% if loop.first %}{% set y = 'f' %}{% endif %}{{ y }},{% endfor %}{{ y is defined }}{{ i is defined }}",
    "for_break": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% else %}never{% endfor %}|{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}|{% for x in xs %}{% break %}{% else %}e{% endfor %}",
    "set": "{% set a = 1 %}{{ a }}{% set a, b = 2, 3 %}{{ a }}{{ b }}{% set c = a, b %}{{ c }}{% set (e1, e2) = [4, 5] %}{{ e1 }}{{ e2 }}{% if yes %}{% set a = 9 %}{% endif %}{{ a }}{% set n = n + 1 %}{{ n }}{% set d2 = {'k': [1]} %}{{ d2.k[0] }}",
    "set_block": "{% set a %}x{{ n }}\n{% endset %}[{{ a }}]{% set b | upper | trim %} q{{ s }} {% endset %}[{{ b }}]{{ a | length }}{% set c %}{% endset %}{{ c is string }}{% for i in xs %}{% set c %}{{ i }}{% endset %}{{ c }}{% endfor %}[{{ c }}]",
    "namespace": "{% set ns = namespace(found=false, n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns }}{{ ns.zz is defined }}{% set ns.zz = [1] %}{{ ns.zz }}{% set a, ns.b = 1, 2 %}{{ a }}{{ ns.b }}",
    "macro": "{% macro f(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=5, c='z') }}{{ f() }}{{ f(1, c=n) }}{{ f(1) | upper }}{{ f is callable }}{{ f.name }}{% macro g(x) %}{{ x is defined }}{% if x > 0 %}{{ g(x - 1) }}{% endif %}{% endmacro %}{{ g(3) }}",
    "macro_args": "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z=4) }}{{ f() }}{% macro g(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ g(1) }}{{ g(1, 2) }}",
    "macro_scope": "{% set v = 'top' %}{% macro f() %}{{ v }}{{ n }}{% set v = 'in' %}{{ v }}{% endmacro %}{{ f() }}{{ v }}{% set v = 'later' %}{{ f() }}{% for v in xs %}{{ f() }}{% endfor %}",
    "call": "{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}body {{ n }}{% endcall %}{% macro each(l) %}{% for x in l %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(x, i) each(xs) %}{{ i }}:{{ x }} {% endcall %}{% macro maybe() %}{% if caller is defined %}{{ caller() }}{% else %}no{% endif %}{% endmacro %}{{ maybe() }}{% call maybe() %}yes{% endcall %}",
    "filter_block": "{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} a\n {% endfilter %}|",
    "with": "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 5 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }}{% with %}{% set n = 0 %}{{ n }}{% endwith %}{{ n }}{% set a = 'o' %}{% with a = 'i', b = a %}{{ a }}{{ b }}{% endwith %}",
    "generation": "{% for x in xs %}{% generation %}{{ x }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}{% endfor %}",
    "raw": "{% raw %}{{ not }} {% code %} {# c #}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  |\n  {% raw %}\n  a {{ b }}\n  {% endraw %}\nend",
    "comment": "a{# comment #}b{#- x -#}  c {#\n multi {{ x }} {% y %}\n#}\nd\n   {# indented #}\ne{#+ x +#}\nf",
    "space_trim": "  {% if yes %}\n  a\n  {% endif %}\nb\n\t{% for x in xs %}\n  {{ x }}\n\t{% endfor %}\n  end  \n",
    "space_minus": "a  {%- if yes -%}  b  {%- endif -%}  c\n\n{{- n -}}\n\n  d {{ n -}}  e  {{- n }} f\n  {%- set x = 1 %}\n g\n  {% set y = 1 -%}\n  h",
    "space_plus": "  {%+ if yes %}x{%+ endif +%}\n  y\n  {%+ if yes +%}\n z{% endif %}\n",
    "space_inline": "a {% if yes %} b {% endif %} c\n  x {% if yes %}\n y\n z {% endif %}\n {% if yes %}{% if yes %}\nq{% endif %}{% endif %}\n\n{% if yes %}\n\nw\n\n{% endif %}\n\n",
    "newlines": "a\r\nb\rc\n{% if yes %}\r\nd\r\n{% endif %}\r\n{{ 'x\r\ny' }}\r\n",
    "trailing": "x\n\n", "only_newline": "\n", "empty": "", "braces": "{ } }} %} {a} {{ '}}' }} {{ {'a': {'b': 1}} }} {{ '{{' }} {% set x = {'a': '%}'} %}{{ x }}",
    "strftime": "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S %A %j %%') }}|{% if strftime_now is defined %}y{% endif %}{{ strftime_now('') }}",
    "generators": "{% set g = xs | select('odd') %}{{ g | list }}{{ g | list }}{% set h = people | map(attribute='name') %}{{ h | first }}{{ h | list }}{% set i = d | items %}{% for k, v in i %}{{ k }}{% endfor %}{{ i | list }}",
    "dict_methods": "{% for k in tool.function %}{{ k }}:{% endfor %}{% for k, v in tool.function.parameters.properties | items %}{{ k }}={{ v.type }}{{ v.default is defined }}{% endfor %}{% for k, v in tool.function.parameters.properties | dictsort %}{{ k }}{% endfor %}",
    "colon": "{% if yes: %}a{% endif %}{% for x in xs: %}{{ x }}{% endfor %}",
    "undefined": "{{ undef }}{{ undef or 'x' }}{{ undef is defined and undef.x }}{{ d.zz }}{{ d.zz or 1 }}{{ undef == undef2 }}{{ undef != 1 }}{{ not undef }}{{ undef | length }}{{ undef | list }}{{ [] | first | default('e') }}{{ undef | default(nil) }}",
}

# Each must fail in Jinja; the message is compared where the template decides it.
ERRORS = [
    "{{ raise_exception('roles must alternate: ' ~ n) }}", "x\n\n{{ raise_exception('line 3') }}", "{{ undef.x }}", "{{ undef['x'] }}", "{{ undef + 1 }}", "{{ 1 + undef }}", "{{ d.zz.y }}", "{{ d['zz']['y'] }}",
    "{% set q = d.zz %}{{ q() }}", "{{ undef() }}", "{{ nil.x.y }}", "{{ xs[9].x }}", "{{ xs.foo.bar }}", "{{ s.foo.bar }}", "{{ undef < 1 }}", "{{ -undef }}", "{{ undef[1:] }}", "{% for x in d.zz.y %}{% endfor %}", "{{ xs.append.x }}",
    "{{ s + 1 }}", "{{ 1 + s }}", "{{ xs + s }}", "{{ nil + 1 }}", "{{ 'a' < 1 }}", "{{ nil < 1 }}", "{{ 1 in 5 }}", "{{ 1 in s }}", "{{ n[1:] }}", "{{ d[1:] }}", "{{ s['a':] }}", "{{ s[::0] }}", "{{ nil | length }}", "{{ 5 | list }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{% for x in 5 %}{% endfor %}", "{% for x in nil %}{% endfor %}", "{% for a, b in xs %}{% endfor %}", "{% for a, b in ['abc'] %}{% endfor %}", "{% set a, b = [1] %}", "{% set d.x = 1 %}", "{% set undef.x = 1 %}",
    "{{ n() }}", "{{ s.upper(1) }}", "{{ 'a'.split('') }}", "{{ s.index('zz') }}", "{{ ','.join(xs) }}", "{{ undef | tojson }}", "{{ [undef] | tojson }}", "{{ xs | sort(attribute='x') }}", "{{ mixed | sort }}", "{{ [[1]] | unique | list }}", "{{ {[]: 1} }}", "{{ range(1000000) | length }}",
    "{{ range(1, 2, 0) }}", "{{ d | items | length }}", "{{ xs | select('odd') | last }}", "{{ 5 | items | list }}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}", "{{ '%d' % 'x' }}", "{{ '%s %s' % 1 }}", "{{ '%s' % (1, 2) }}", "{{ '%z' % 1 }}", "{{ '%' % 1 }}", "{{ '%(x)s' % d }}",
    "{{ xs | map('nope') | list }}", "{{ xs | select('nope') | list }}", "{{ s | round }}", "{{ s | abs }}", "{{ +s }}", "{{ -s }}", "{{ namespace(_x=1) }}", "{{ dict([1]) }}", "{{ xs | tojson(separators=1) }}", "{{ n | indent }}", "{{ undef | int }}", "{{ [1, 'a'] | max }}", "{{ d.x.y.z }}", "{{ (1 if no).x }}", "{{ none_list[0].x }}", "{{ (none_list | first).x }}",
    "{{ '{}'.format() }}", "{{ '{1}'.format(1) }}", "{{ '{x}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ '{}{0}'.format(1) }}", "{{ '{0}{}'.format(1) }}", "{{ '{0[}'.format(xs) }}", "{{ '{0.}'.format(xs) }}", "{{ '{0[0]x}'.format(xs) }}", "{{ '{!}'.format(1) }}", "{{ '{!rx}'.format(1) }}", "{{ '{99999999999}'.format(1) }}", "{{ '{x y'.format(1) }}",
    "{{ xs.append(1) }}", "{{ xs.pop() }}", "{{ d.update(xs) }}", "{% if yes %}{{ xs.append(1) }}{% endif %}", "{% if yes %}{{ x | nope }}{% endif %}", "{% if yes %}{{ x is nope }}{% endif %}", "{{ (x | nope) if yes }}", "{% if no %}{% for x in xs %}{{ x | nope }}{% endfor %}{% endif %}", "{% if no %}{% set x %}{{ x | nope }}{% endset %}{% endif %}",
    # refused when compiled
    "{% foo %}", "{{ x | nope }}", "{{ x is nope }}", "{% if x %}", "{% endif %}", "{{ x", "{{ }}", "{% for x %}{% endfor %}", "{{ 'a }}", "{{ 1 + }}", "{# open", "{% raw %}x", "{{ (1 }}", "{{ 1) }}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{{ a b }}", "{% if %}{% endif %}", "{% block x %}{% endblock %}{% foo %}", "{{ x[ }}", "{{ {1} }}", "{{ a.1b }}", "{{ a..b }}",
    "{% else %}", "{% for x in xs %}", "{% macro %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% set x %}", "{% call x %}{% endcall %}", "{{ $ }}", "{{ a ? b }}", "{{ x is }}", "{{ x | }}", "{% if a = 1 %}{% endif %}", "{{ '\\x4' }}", "{% endfor %}", "{{ f(a=1, 2) }}", "{% break %}", "{{ n is odd is even }}",
]

ROLES = ("{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}")

FORMATS = {
    "demo": "{% for message in messages %}" + ROLES + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "chatml": "{%- for message in messages %}\n    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "llama31": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message comes first, whatever it holds #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral_v2": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "mistral_v3": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "qwen25": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "r1": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}",
    "internlm2": "{{ bos_token }}{% for message in messages %}" + ROLES + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "parts": "{% for message in messages %}{{ message.role | upper }}: {% if message.content is string %}{{ message.content }}{% elif message.content is none %}-{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}[{{ part['type'] }}]{% endif %}{{ ' ' if not loop.last }}{% endfor %}{% endif %}\n{% endfor %}",
}

CALL = {"id": "abc123DEF", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich \"center\"", "days": 2, "f": 1.5}}}
U, A, S = (lambda c, r=r: {"role": r, "content": c} for r in ("user", "assistant", "system"))
CONVERSATIONS = [
    [U("Hello")],
    [S("Be brief."), U("Hello")],
    [U("  padded \n"), A(" answer  "), U("again\n\n")],
    [S("  sys \n"), U("a"), A("b"), U("c"), A("d")],
    [U("")], [S(""), U(""), A(""), U("")],
    [U("Grüße 東京 👩‍🚀 ﷽ \u200b\u2028 \x07 <|im_end|> {{ x }} {% y %}")],
    [U("q"), A("<think>\nhm\n\n</think>\n\nDone."), U("more"), A("<think>a</think><think>b</think>c")],
    [U("q"), {"role": "assistant", "content": "r", "reasoning_content": "\nwhy\n"}],
    [U("weather?"), {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "{\"t\": 20}", "tool_call_id": "abc123DEF"}, A("20 degrees"), U("ok")],
    [U("weather?"), {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}, {"role": "tool", "content": "a", "tool_call_id": "abc123DEF"}, {"role": "tool", "content": "b", "tool_call_id": "abc123DEF"}],
    [A("starts"), U("wrong")], [U("one"), U("two")], [S("only")], [],
    [U([{"type": "text", "text": "look"}, {"type": "image"}])], [{"role": "user"}], [{"role": "user", "content": None}],
    [U("x" * 300 + "\n" + "y é " * 50)], [U(str(i)) if i % 2 == 0 else A(str(i)) for i in range(21)],
]
