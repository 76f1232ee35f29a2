// What the oracle (jinja_oracle.py) cannot show: limits, error messages, the clock. Expected texts
// are Python's.
#include "frontend/jinja/template.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar::jinja {
namespace {

std::string render(const std::string& source, const Variables& variables = {},
                   const RenderOptions& options = {}) {
  return Template(source, "chat_template").render(variables, options);
}

// The one sentence that it fails with, at parsing or at rendering.
std::string failure(const std::string& source, const RenderOptions& options = {}) {
  try {
    return "rendered: " + render(source, {}, options);
  } catch (const Error& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

TEST(Jinja, VariablesAndWhitespace) {
  EXPECT_EQ(render("{% if a %}\n  {{ a }}\n  {% endif %}\n|", {{"a", "x"}}), "  x\n|");
  EXPECT_EQ(render("a {{- b -}} c\n", {{"b", 1}}), "a1c");
  EXPECT_EQ(render(""), "");
}

TEST(Jinja, PrintsAsPython) {
  EXPECT_EQ(render("{{ [1.0, true, none, 'a', {'k': (1,)}] }}"),
            "[1.0, True, None, 'a', {'k': (1,)}]");
  EXPECT_EQ(render("{{ {'a': 1e16} | tojson }}"), "{\"a\": 1e+16}");
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_EQ(failure("a\nb\n{{ x.y }}"), "chat_template, line 3: x is undefined");
  EXPECT_EQ(failure("\n{% for %}"), "chat_template, line 2: expected a name, found %}");
  EXPECT_EQ(failure("{{ 1\n+\n'a' }}"),
            "chat_template, line 2: the operator + does not take values of the types int and str");
  EXPECT_EQ(failure("\n\n{{ raise_exception('no roles') }}"),
            "chat_template refuses the conversation on line 3: no roles");
  EXPECT_TRUE(has(failure("{% if a %}\n"), "expected endif"));
  EXPECT_TRUE(has(failure("{{ 'a"), "not closed"));
  EXPECT_TRUE(has(failure("x {# \n"), "line 1: a comment is not closed"));
  EXPECT_TRUE(has(failure("{% include 'a' %}"), "\"include\" is not supported"));
  EXPECT_TRUE(has(failure("{{ 99999999999999999999 }}"), "too large"));
  EXPECT_TRUE(has(failure("{{ 9223372036854775807 + 1 }}"), "beyond 64 bits"));
  EXPECT_TRUE(has(failure("{{ -9223372036854775807 - 2 }}"), "beyond 64 bits"));
}

TEST(Jinja, MacroErrorsNameTheLineOfTheBody) {
  EXPECT_EQ(failure("{% macro m() %}\n{{ u.v }}{% endmacro %}\n\n{{ m() }}"),
            "chat_template, line 2: u is undefined");
}

TEST(Jinja, StepsAreBounded) {
  const std::string loops =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  EXPECT_TRUE(has(failure(loops), "steps"));
  EXPECT_TRUE(has(failure("{{ range(100001) }}"), "more than 100000 numbers"));
  EXPECT_TRUE(has(failure("{{ ([0] * 2000000) * 9000000 }}"), "steps"));
  // What is looked at counts, too, though nothing is made of it: a search that cannot succeed, a
  // sort of texts that differ at their ends, a value that holds another many times.
  for (const char* touches :
       {"{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 + 'b' %}{{ b in a }}",
        "{% set a = 'a' * 1000000 %}{{ a.count('a' * 500000 + 'b') }}",
        "{% set a = 'a' * 1000000 %}{{ a | replace('a' * 500000 + 'b', '') | length }}",
        "{% set a = 'a' * 1000000 %}{% for i in range(5000) %}{{ a | length }}{% endfor %}",
        "{% set a = ['a' * 1000000] * 2000 %}{{ a | sort(case_sensitive=true) | length }}",
        "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
        "{% endfor %}{{ n.a == n.a }}"})
    EXPECT_TRUE(has(failure(touches), "steps")) << touches;
  EXPECT_EQ(failure("{{ 1 }}{{ 2 }}", {.limits = {.steps = 100}}), "rendered: 12");
  EXPECT_TRUE(has(failure("{{ 1 }}{{ 2 }}", {.limits = {.steps = 4}}), "more than 4 steps"));
}

// Dicts compare their keys, names are looked for in all blocks around, macros in all scopes.
TEST(Jinja, DictsAndScopesAreCharged) {
  const auto literal = [](int keys) {
    std::string text = "{% set d = {";
    for (int i = 0; i < keys; ++i) text += std::to_string(i) + ": 1,";
    return text + "} %}{{ d | length }}";
  };
  const auto named = [](int count) {
    std::string text = "{{ dict(";
    for (int i = 0; i < count; ++i) text += "a" + std::to_string(i) + "=1,";
    return text + "z=1) | length }}";
  };
  const auto grown = [](int rounds) {
    return "{% set n = namespace(d={}) %}{% for i in range(" + std::to_string(rounds) +
           ") %}{% set n.d = dict(n.d, **{'k' ~ i: i}) %}{% endfor %}{{ n.d | length }}";
  };
  EXPECT_EQ(failure(literal(1000)), "rendered: 1000");
  EXPECT_TRUE(has(failure(literal(20'000)), "steps"));
  EXPECT_EQ(failure(named(999)), "rendered: 1000");
  EXPECT_TRUE(has(failure(named(100'000)), "steps"));
  EXPECT_EQ(failure(grown(200)), "rendered: 200");
  EXPECT_TRUE(has(failure(grown(5000)), "steps"));
  const std::string macros =
      "{% for i in range(100000) %}{% macro m() %}{% endmacro %}{{ m() }}{% endfor %}";
  EXPECT_TRUE(has(failure(macros), "steps"));
}

// Many names are found without looking at each.
TEST(Jinja, ABlockMayHaveManyNames) {
  std::string sets;
  for (int i = 0; i < 50'000; ++i) {
    const std::string name = "v" + std::to_string(i);
    sets += "{% set " + name + " = " + std::to_string(i) + " %}";
  }
  EXPECT_EQ(failure(sets + "{% set v7 = 'x' %}{{ v0 }} {{ v7 }} {{ v49999 }} {{ w is defined }}"),
            "rendered: 0 x 49999 False");
}

TEST(Jinja, SourcesAreBounded) {
  EXPECT_TRUE(has(failure(std::string(size_t{3} << 20, 'x')), "expected a template of at most"));
  EXPECT_TRUE(has(failure(std::string(size_t{1} << 20, 'x')), "rendered: xxx"));
}

TEST(Jinja, TextIsBounded) {
  const std::string doubling =
      "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor "
      "%}";
  EXPECT_TRUE(has(failure(doubling), "bytes of text"));
  EXPECT_TRUE(has(failure("{{ 'ab' * 9000000000000000000 }}"), "bytes of text"));
  EXPECT_TRUE(has(failure("{{ '%999999999s' % 1 }}"), "wider"));
  const RenderOptions small{.limits = {.output_bytes = 10}};
  EXPECT_EQ(failure("0123456789", small), "rendered: 0123456789");
  EXPECT_TRUE(has(failure("0123456789{{ 1 }}", small), "prints more than 10 bytes"));
}

// Values share their parts, separators repeat: what is printed is bounded before it is whole.
TEST(Jinja, PrintedValuesAreBounded) {
  const std::string shared =
      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}";
  for (const char* print :
       {"{{ n.x }}", "{{ n.x | tojson | length }}", "{{ n.x ~ '' }}", "{{ n.x | string | length }}",
        "{{ n.x is upper }}", "{{ ('%s' * 100000) % (('a' * 1000000,) * 100000) }}",
        "{{ ('{0}' * 40).format('a' * 1000000) }}",
        "{{ ([1] * 9) | tojson(separators=('a' * 20000000, ':')) | length }}",
        "{{ [[[1]]] | tojson(indent='a' * 20000000) | length }}",
        "{{ ('\x01' * 40000000) | tojson | length }}", "{{ ['a' * 40000000] | string | length }}"})
    EXPECT_TRUE(has(failure(shared + print), "a value prints more than 33554432 bytes"))
        << print << ": " << failure(shared + print).substr(0, 200);
  EXPECT_EQ(failure("{{ (['a' * 1000000] * 30) | tojson | length }}"), "rendered: 30000120");
}

// Each value that is printed is a step: shared values are printed as often as they stand there.
TEST(Jinja, PrintingIsCounted) {
  const RenderOptions few{.limits = {.steps = 30000}};
  const std::string shared =
      "{% set n = namespace(x=[1.5, 2.5]) %}{% for i in range(12) %}{% set n.x = [n.x, n.x] %}"
      "{% endfor %}";  // 8192 numbers, 16383 values
  for (const std::string print :
       {"(n.x | tojson)", "(n.x | string)", "(n.x ~ '')", "('%s' % (n.x,))", "('%r' % (n.x,))",
        "('{}'.format(n.x))", "([n.x] | join)"}) {
    EXPECT_EQ(failure(shared + "{{ " + print + " | length > 9 }}", few), "rendered: True") << print;
    const std::string twice = shared + "{{ " + print + " ~ " + print + " }}";
    EXPECT_TRUE(has(failure(twice, few), "takes more than 30000 steps")) << print;
  }
  const std::string loop = "{% set s = 'A' * 1000000 %}{% for i in range(99) %}";
  for (const std::string look : {"s is upper", "'%.1s' % s"})
    EXPECT_TRUE(has(failure(loop + "{% if " + look + " %}{% endif %}{% endfor %}", few),
                    "takes more than 30000 steps"))
        << look;
  const std::string many = "('%(a)s' * 9000) % dict(a=1, b=2)";
  EXPECT_EQ(failure("{{ (" + many + ") | length }}", few), "rendered: 9000");
  EXPECT_TRUE(
      has(failure("{{ " + many + " ~ " + many + " }}", few), "takes more than 30000 steps"));
}

// A text has many pieces: they are counted before they are made.
TEST(Jinja, PiecesOfTextsAreBounded) {
  for (const char* print :
       {"{{ ('a,' * 4000000).split(',') | length }}", "{{ ('a,' * 4000000).rsplit(',') | length }}",
        "{{ ('a ' * 4000000).split() | length }}", "{{ ('a\n' * 4000000).splitlines() | length }}",
        "{{ ('a' * 4000000) | list | length }}", "{{ ('aa' * 4000000).count('aa') }}",
        "{{ ('a' * 4000000).replace('a', '') }}", "{{ ('a' * 4000000) | replace('a', '') }}"})
    EXPECT_TRUE(has(failure(print), "takes more than 3000000 steps")) << print;
  EXPECT_EQ(failure("{{ ('a,' * 400000).split(',') | length }} {{ ('a' * 9999).count('a') }}"),
            "rendered: 400001 9999");
  EXPECT_EQ(failure("{{ ('aa' * 2000000).split(',') | length }}"), "rendered: 1");
}

TEST(Jinja, DepthIsBounded) {
  EXPECT_TRUE(has(failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "deeper than"));
  EXPECT_TRUE(
      has(failure("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}"), "nested"));
  EXPECT_TRUE(has(failure("{{ x" + repeated("|trim", 100000) + " }}"), "in a row"));
  EXPECT_TRUE(has(failure("{{ x" + repeated(".a", 100000) + " }}"), "in a row"));
  EXPECT_TRUE(has(failure("{{ " + repeated("not ", 100000) + "1 }}"), "nested"));
  EXPECT_TRUE(has(failure(repeated("{% if 1 %}", 100000)), "nested"));
  const std::string lists =
      "{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = [n.l] %}{% endfor %}";
  EXPECT_TRUE(has(failure(lists + "{{ n.l }}"), "nested deeper than"));
}

TEST(Jinja, NothingChangesButNamespaces) {
  EXPECT_TRUE(has(failure("{{ [].append(1) }}"), "may not"));
  EXPECT_TRUE(has(failure("{{ {}.update({}) }}"), "may not"));
  EXPECT_TRUE(has(failure("{% set d = {} %}{% set d.x = 1 %}"), "not a namespace"));
}

// The address sanitizer sees what such circles leave behind.
TEST(Jinja, CirclesAreFreed) {
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.self = n %}{% set n.l = [n] %}ok"), "ok");
  EXPECT_EQ(render("{% macro m() %}{% endmacro %}{% set n = namespace(f=m) %}{{ m() }}ok"), "ok");
  EXPECT_EQ(
      render("{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}"),
      "12");
}

TEST(Jinja, TheClockIsGiven) {
  std::tm day{};
  day.tm_year = 124;
  day.tm_mon = 6;
  day.tm_mday = 26;
  const RenderOptions options{.clock = [&] { return day; }};
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}", {}, options), "26 Jul 2024");
  EXPECT_TRUE(has(failure("{{ strftime_now('%d') }}"), "no clock"));
}

TEST(Jinja, JsonKeepsTheOrderOfKeysAndTheKindOfNumbers) {
  const json::Value value = json::parse(R"({"b": 1, "a": 2.0, "c": [null, true]})", "test");
  EXPECT_EQ(render("{{ v | tojson }} {{ v }}", {{"v", Value::from_json(value)}}),
            R"({"b": 1, "a": 2.0, "c": [null, true]} {'b': 1, 'a': 2.0, 'c': [None, True]})");
}

TEST(Jinja, BytesOfTheSourceDoNotCrashIt) {
  const std::string seed =
      "{%- macro m(a, b=1) -%}{{ a[b:] | map('upper') | join(', ') }}{%- endmacro %}"
      "{% for x, y in d.items() if x is string %}{{ loop.index ~ m([x], b=0) }}{% else %}{{ '%s' % "
      "1 }}"
      "{% endfor %}{% set n = namespace(k={'a': (1, 2.5)}) %}{% set n.k = n.k['a'][::-1] %}{{ n.k "
      "| tojson(indent=2) }}";
  const std::string bytes = "{}%-#|()[]'\".,:=~ \n01ax_";
  const Variables variables = {{"d", Value::dict({{"k", 1}, {2, "v"}})}};
  uint64_t state = 1;
  const auto random = [&](size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  int rendered = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string source = seed;
    for (size_t edits = 1 + random(3); edits > 0; --edits) {
      const size_t at = random(source.size());
      switch (random(3)) {
        case 0:
          source[at] = bytes[random(bytes.size())];
          break;
        case 1:
          source.erase(at, 1 + random(5));
          break;
        default:
          source.insert(at, 1, bytes[random(bytes.size())]);
      }
    }
    try {
      render(source, variables, {.limits = {.steps = 10000}});
      ++rendered;
    } catch (const Error& error) {
      EXPECT_FALSE(has(error.what(), "\n"));
    }
  }
  EXPECT_GT(rendered, 100);
  EXPECT_LT(rendered, 3900);
}

}  // namespace
}  // namespace invar::jinja
