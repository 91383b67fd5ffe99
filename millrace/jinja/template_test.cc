#include "millrace/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace::jinja {
namespace {

using testing::HasSubstr;

Result<std::string> Render(std::string_view source, const Json& variables = Json::object(), RenderLimits limits = {}) {
  const Template parsed = MR_TRY(Template::Parse(source));
  return parsed.Render(variables, WallTime(std::chrono::seconds(1'700'000'000)), limits);
}

std::string Text(std::string_view source, const Json& variables = Json::object()) {
  const auto text = Render(source, variables);
  return text ? *text : "error: " + text.error().ToString();
}

TEST(Template, RemovesWhiteSpaceAroundTagsAsChatTemplatesExpect) {
  EXPECT_EQ(Text("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(Text("a \n {%- if true -%} \n b {%- endif %} c"), "ab c");
  EXPECT_EQ(Text("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(Text("  {{ 1 }}\n{{- 2 -}}\n 3\r\n"), "  123");
  EXPECT_EQ(Text("a\n  {# c #}\nb{#- d -#} e"), "a\nbe");
  EXPECT_EQ(Text("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
  EXPECT_EQ(Text("{ } {x} %}"), "{ } {x} %}");
}

TEST(Template, ComputesAsPythonDoes) {
  EXPECT_EQ(Text("{{ -7 // 2 }} {{ -7 % 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1 ~ '2' }}"), "-4 1 3.5 8 12");
  EXPECT_EQ(Text("{{ [1, 'a', none, true, 1.0, (2,)] }} {{ {'k': 'it\\'s'} }}"),
            "[1, 'a', None, True, 1.0, (2,)] {'k': \"it's\"}");
  EXPECT_EQ(Text("{{ 'añb'[1] }}{{ 'añb'[::-1] }}{{ 'añb'|length }}"), "ñbña3");
  EXPECT_EQ(Text("{{ 1 < 2 < 3 and not 'x' in 'abc' }}"), "True");
  EXPECT_EQ(Text("{{ 'a' if false }}|{{ absent }}|{{ 'b' if x is defined else 'c' }}"), "||c");
  EXPECT_THAT(Text("{{ absent.x }}"), HasSubstr("line 1: \"absent\" is undefined and has no \"x\""));
  EXPECT_THAT(Text("\n{{ 'a' + 1 }}"), HasSubstr("line 2: a string and an integer have no operator +"));
}

TEST(Template, LoopsHaveAScopeAndNamespacesLeaveIt) {
  EXPECT_EQ(Text("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last "
                 "}}{% endfor %}"),
            "1/2:1,2/2:3");
  EXPECT_EQ(Text("{% set x = 0 %}{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set x = i %}{% set ns.x = i %}"
                 "{% endfor %}{{ x }}{{ ns.x }}"),
            "02");
  EXPECT_EQ(Text("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}"), "a1b2");
  EXPECT_EQ(Text("{% for x in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(
      Text("{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ "
           "x }}{% endfor %}"),
      "02");
}

TEST(Template, MacrosSeeWhatIsAroundThem) {
  EXPECT_EQ(Text("{% set n = 1 %}{% macro m(a, b='z') %}{{ a }}{{ b }}{{ n }}{% endmacro %}{% set n = 2 %}"
                 "{{ m(1) }} {{ m('x', b=3) }} {{ m() }}"),
            "1z2 x32 z2");
  EXPECT_EQ(Text("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
}

TEST(Template, RefusesWithTheTemplatesOwnWords) {
  const auto refused = Render("{{ raise_exception('roles must alternate') }}");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("roles must alternate"));
}

TEST(Template, NamesWhatItDoesNotSupport) {
  for (const char* source : {"{% include 'x' %}", "{% call m() %}{% endcall %}", "{{ x|urlize }}", "{{ x is filter }}",
                             "{{ f(*x) }}", "{{ '%s' % x }}", "{{ [1]|select }}", "{{ 'é'|upper }}"}) {
    const auto refused = Render(source, {{"x", "a"}});
    ASSERT_FALSE(refused) << source;
    EXPECT_EQ(refused.error().code(), Code::kUnsupported) << refused.error().ToString();
  }
}

TEST(Template, NamesTheLineOfWhatIsWrong) {
  EXPECT_THAT(Text("a\nb {{ x"), HasSubstr("line 2: the tag has no end"));
  EXPECT_THAT(Text("{% if x %}\n"), HasSubstr("the template ends before {% endif %}"));
  EXPECT_THAT(Text("\n\n{% endfor %}"), HasSubstr("line 3: unexpected {% endfor %}"));
  EXPECT_THAT(Text("{{ 1 + }}"), HasSubstr("expected a value, not }}"));
  EXPECT_THAT(Text("{% unheard %}"), HasSubstr("unknown tag {% unheard %}"));
}

TEST(Template, CannotChangeItsVariables) {
  EXPECT_THAT(Text("{{ x.append(1) }}", {{"x", Json::array()}}), HasSubstr("append() would change a list"));
  EXPECT_THAT(Text("{% set x.a = 1 %}", {{"x", Json::object()}}), HasSubstr("only members of a namespace"));
}

/// Templates come with models. Whatever they do, a rendering ends, and soon.
TEST(Template, EndsWithinItsLimits) {
  const RenderLimits limits{.steps = 100'000, .made_bytes = 1'000'000, .read_bytes = 1'000'000};
  std::string deep(5000, '('), chain = "1",
                               nested =
                                   "{% set ns = namespace(x=1) %}{% for i in range(90000) %}"
                                   "{% set ns.x = [ns.x] %}{% endfor %}";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  std::string ifs;
  for (int i = 0; i < 5000; ++i) ifs += "{% if true %}";
  for (const std::string& source :
       {std::string("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}"),
        std::string(
            "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
        std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), std::string("{{ 'a' * 100000000000 }}"),
        std::string("{{ range(10000000) }}"), std::string("{{ 9 ** 99 }}"), std::string("{{ [1, 2] * 100000000 }}"),
        "{{ " + deep, "{{ " + chain + " }}", nested, ifs,
        std::string("{% set ns = namespace(x=1) %}{% set ns.y = ns %}")}) {
    EXPECT_FALSE(Render(source, Json::object(), limits)) << source.substr(0, 60);
  }
}

/// The limits count bytes before values are made, compared or searched: none of these templates is short of steps.
TEST(Template, CountsBytesBeforeItWorks) {
  const std::string large = "{% set x = 'a' * 2000000 %}{% set y = x + 'c' %}{% set x = x + 'b' %}";
  std::string doubled = "{% set a = ['x'] %}{% set b = ['x'] %}{% set t = (1,) %}";
  for (int i = 0; i < 60; ++i) doubled += "{% set a = [a, a] %}{% set b = [b, b] %}{% set t = (t, t) %}";
  std::vector<std::string> sources = {"{{ (['x' * 1000000] * 1000000) | join }}",
                                      "{{ ''.join(['x' * 9000000] * 900) }}",
                                      "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
                                      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
                                      "{{ ('\n' * 1000000) | indent('b' * 1000000, true, true) }}",
                                      large + "{{ y in [x] * 100000 }}",
                                      "{{ ([1] * 100000) | tojson(separators=('a' * 1000000, ':')) }}",
                                      large + "{{ ([x] * 10000) | sort }}"};
  for (const char* use :
       {"a", "a | tojson", "a == b", "a < b", "a in [b]", "{t: 1}", "[t, t] | unique | list", "a | string"})
    sources.push_back(doubled + "{{ " + use + " }}");
  for (const char* use : {"x[1:2]", "x.startswith(x)", "x | length", "x.rfind('b' ~ x)", "x.strip('a')", "x == y",
                          "x.count('b')", "x.isalpha()", "x | upper"})
    sources.push_back(large + "{% for i in range(100000) %}{% if " + use + " %}{% endif %}{% endfor %}");
  for (const std::string& source : sources) {
    const auto refused = Render(source, Json::object(), {.made_bytes = 16 << 20, .read_bytes = 16 << 20});
    ASSERT_FALSE(refused) << source.substr(source.size() > 80 ? source.size() - 80 : 0);
    EXPECT_EQ(refused.error().code(), Code::kResourceExhausted) << source.substr(0, 60) << refused.error().ToString();
  }
}

TEST(Template, TellsWhereGenerationBlocksAre) {
  const auto marked = [](std::string_view source) {
    const auto parsed = Template::Parse(source);
    EXPECT_TRUE(parsed) << source;
    return parsed->RenderMarked({}, WallTime());
  };
  const auto spans = [&](std::string_view source) { return marked(source)->generated; };
  const std::string_view loop =
      "{% for x in ['a', '', 'cd'] %}<{% generation %}{{ x }}{% if x %};{% endif %}{% endgeneration %}>{% endfor %}";
  EXPECT_EQ(marked(loop)->text, "<a;><><cd;>");
  EXPECT_EQ(spans(loop), (std::vector<TextSpan>{{1, 3}, {7, 10}}));
  EXPECT_TRUE(Template::Parse(loop)->marks_generation());
  EXPECT_FALSE(Template::Parse("{{ 'generation' }}")->marks_generation());
  // As a call block of Jinja's, it is a scope.
  EXPECT_EQ(marked("{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y }}")->text, "1");
  for (const std::string_view hidden : {"{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}",
                                        "{% set t %}{% generation %}a{% endgeneration %}{% endset %}{{ t }}"}) {
    EXPECT_EQ(Text(hidden), "a");
    EXPECT_EQ(marked(hidden).error().code(), Code::kUnsupported) << hidden;
  }
}

TEST(Template, SearchesLongTextsInLinearTime) {
  EXPECT_EQ(Text("{{ ('a' * 1000000 + 'b') in ('a' * 4000000) }}"), "False");
  EXPECT_EQ(Text("{{ ('a' * 2000000).split('a' * 1000000 + 'b') | length }}"), "1");
  EXPECT_EQ(
      Text("{{ 'abcabc'.rfind('bc') }} {{ 'abc'.rfind('x') }} {{ 'abc'.rfind('') }} {{ 'a,b,c'.rsplit(',', 1) }}"),
      "4 -1 3 ['a,b', 'c']");
}

TEST(Template, EscapesWhatIsAddedToMarkup) {
  EXPECT_EQ(Text("{{ '<b>' | safe + x }} {{ x + '<b>' | safe }} {{ ('a' | safe ~ x ~ 1) + '<' }}", {{"x", "<\"'&"}}),
            "<b>&lt;&#34;&#39;&amp; &lt;&#34;&#39;&amp;<b> a<\"'&1<");
  EXPECT_EQ(Text("{{ '<' | e }} {{ '<' | safe | e }} {{ ('<' | safe)[0] + '>' }} {{ '<' | safe }}"), "&lt; < <&gt; <");
}

/// Parts of valid templates in random order never crash, and are refused with a line.
TEST(Template, AnyBytesAreRefusedOrRendered) {
  Random random(3);
  const std::vector<std::string> parts = {"{{",       "}}",        "{%",       "%}",    "{#",     "#}",   "-",
                                          "if ",      "for x in ", "set x = ", "endif", "endfor", "else", "macro m(a)",
                                          "endmacro", "x",         "'",        "\"",    "[",      "]",    "(",
                                          ")",        "|",         "length",   " is ",  "1",      ".",    ",",
                                          ":",        "\n",        " ",        "\\",    "~",      "\xff", "é",
                                          "raw",      "endraw"};
  int rendered = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string source;
    for (std::uint64_t n = random.Below(14); n > 0; --n) source += parts[random.Below(parts.size())];
    rendered += Render(source, {{"x", {1, "a"}}}) ? 1 : 0;
  }
  EXPECT_GT(rendered, 1000);
}

}  // namespace
}  // namespace millrace::jinja
