#include "millrace/serve/constraint/constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "millrace/base/hash/random.h"
#include "millrace/serve/constraint/json_schema.h"
#include "millrace/serve/constraint/number_range.h"
#include "millrace/serve/constraint/regex.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::serve {
namespace {

using testing::HasSubstr;

Grammar OfRegex(std::string_view pattern) {
  Grammar grammar;
  grammar.NewRule();
  grammar.SetRule(0, AddRegex(pattern, RegexUse::kText, grammar, grammar.End()).value());
  return grammar;
}

bool Fits(GrammarMachine& machine, std::string_view text) {
  GrammarMachine::State state = machine.Number(machine.start());
  for (const char byte : text) {
    if (state == GrammarMachine::kDead) return false;
    state = machine.Next(state, static_cast<unsigned char>(byte));
  }
  return state != GrammarMachine::kDead && machine.Accepts(state);
}

bool FitsRegex(std::string_view pattern, std::string_view text) {
  GrammarMachine machine(OfRegex(pattern));
  return Fits(machine, text);
}

bool FitsSchema(std::string_view schema, std::string_view text) {
  GrammarMachine machine(JsonSchemaGrammar(ParseJson(schema, "schema").value()).value());
  return Fits(machine, text);
}

/// Patterns of random parts match what std::regex matches.
TEST(Regex, MatchesWhatARegexMatches) {
  Random random(4);
  const auto pick = [&](const std::vector<std::string>& choices) { return choices[random.Below(choices.size())]; };
  const std::vector<std::string> atoms = {"a", "b", "[ab]", "[^a]", ".", "\\d", "\\w", "[a-c0]", "1", "\\."};
  std::function<std::string(int)> make = [&](int depth) -> std::string {
    std::string pattern;
    for (std::uint64_t n = random.Below(3) + 1; n > 0; --n) {
      pattern += depth > 0 && random.Below(3) == 0 ? "(?:" + make(depth - 1) + ")" : pick(atoms);
      pattern += pick({"", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}"});
      if (depth > 0 && random.Below(5) == 0) pattern += "|" + make(depth - 1);
    }
    return pattern;
  };
  int matched = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string pattern = make(2);
    const std::regex reference(pattern);
    GrammarMachine machine(OfRegex(pattern));
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (std::uint64_t n = random.Below(7); n > 0; --n) text += "ab1.c"[random.Below(5)];
      const bool fits = Fits(machine, text);
      ASSERT_EQ(fits, std::regex_match(text, reference)) << pattern << " " << text;
      matched += fits ? 1 : 0;
    }
  }
  EXPECT_GT(matched, 500);
}

TEST(Regex, CharactersAreThoseOfUnicode) {
  EXPECT_TRUE(FitsRegex("[α-ω]+", "λογος"));
  EXPECT_FALSE(FitsRegex("[α-ω]+", "Λ"));
  EXPECT_TRUE(FitsRegex(".", "🦙"));
  EXPECT_FALSE(FitsRegex(".", "\xf0\x9f")) << "half a character";
  EXPECT_FALSE(FitsRegex(".", "\xed\xa0\x80")) << "a surrogate";
  EXPECT_FALSE(FitsRegex("[^a]", "a"));
  // Every code point of a range, and none beside it.
  Random random(8);
  for (int round = 0; round < 300; ++round) {
    const auto code_point = [&] {
      const std::uint64_t most[] = {0x80, 0x800, 0xD800, 0x110000};
      return static_cast<char32_t>(random.Below(most[random.Below(4)]));
    };
    char32_t first = code_point(), last = code_point();
    if (first > last) std::swap(first, last);
    Grammar grammar;
    grammar.NewRule();
    grammar.SetRule(0, grammar.Character({{first, last}}, grammar.End()));
    GrammarMachine machine(std::move(grammar));
    for (const char32_t code :
         std::vector<char32_t>{first, last, first - 1, last + 1, first + (last - first) / 2, code_point()}) {
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) continue;
      std::string text;
      tokenizer::AppendUtf8(code, text);
      ASSERT_EQ(Fits(machine, text), first <= code && code <= last) << std::hex << static_cast<std::uint32_t>(code);
    }
  }
}

TEST(Regex, TakesWhatDoesNotChangeAWholeMatch) {
  EXPECT_TRUE(FitsRegex("a*?b+?c{1,2}?", "abc"));
  EXPECT_TRUE(FitsRegex("(?P<year>\\d+)-(?<month>\\d+)", "2026-11"));
  EXPECT_TRUE(FitsRegex("^a$|^b$", "b"));
  EXPECT_FALSE(FitsRegex("^a$|^b$", "a$"));
  EXPECT_TRUE(FitsRegex("{a}{,b", "{a}{,b"));
  EXPECT_TRUE(FitsRegex("x{2}{", "xx{"));
}

TEST(Regex, RefusesWithThePlace) {
  const std::vector<std::pair<std::string, std::string>> wrong = {{"a(b", "has no \")\""},
                                                                  {"a)", "unexpected"},
                                                                  {"*", "nothing to repeat"},
                                                                  {"[a", "has no \"]\""},
                                                                  {"a{3,1}", "3 to 1"},
                                                                  {"a{9999}", "more than"},
                                                                  {"(?=a)", "group"},
                                                                  {"\\b", "\"\\b\""},
                                                                  {"a*+", "possessive"},
                                                                  {"(a)\\1", "\"\\1\""},
                                                                  {"[b-a]", "no order"},
                                                                  {"a$b", "before the end"},
                                                                  {"a**", "repetition of"},
                                                                  {"((((a{99}){99}){99}){99})", "too large"},
                                                                  {"((((){1000}){1000}){1000}){1000}", "too large"},
                                                                  {"a|^b(^c)", "\"^\" behind"}};
  for (const auto& [pattern, says] : wrong) {
    Grammar grammar;
    grammar.NewRule();
    const auto added = AddRegex(pattern, RegexUse::kText, grammar, grammar.End());
    ASSERT_FALSE(added) << pattern;
    EXPECT_THAT(added.error().message(), HasSubstr(says)) << pattern;
  }
}

TEST(JsonGrammar, TakesObjectsOfJsonAndNothingElse) {
  GrammarMachine machine(JsonObjectGrammar());
  for (const char* text : {"{}", R"({"a": 1})", R"( {"a":[1,-2.5e+3,null,true,false,{"b\n\u00fc":"x\\y"}],"é":{}} )",
                           "{\n  \"a\": []\n}"}) {
    EXPECT_TRUE(Fits(machine, text)) << text;
    EXPECT_TRUE(ParseJson(text, "test")) << text;
  }
  for (const char* text : {"", "[]", "1", "{", R"({"a"})", R"({"a":1,})", R"({a:1})", "{\"a\":\"\n\"}", R"({"a":01})",
                           R"({"a":1}})", R"({"a":"\x"})", R"({"a" 1})", "{\"a\":\"\xff\"}"}) {
    EXPECT_FALSE(Fits(machine, text)) << text;
  }
}

TEST(JsonSchema, TakesWhatItDescribes) {
  const std::string person = R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3},
      "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b\"", 1]}, "minItems": 1, "maxItems": 2}},
      "required": ["age"]})";
  for (const char* text :
       {R"({"age": 3})", R"({"name":"Ada","age":-3,"tags":["a","b\""]})", R"({ "age" : 0 , "tags" : [ 1 ] })"})
    EXPECT_TRUE(FitsSchema(person, text)) << text;
  for (const char* text : {R"({})", R"({"age": 3.5})", R"({"age": 3, "name": "Ada"})", R"({"name":"Adam","age":3})",
                           R"({"age":3,"tags":[]})", R"({"age":3,"tags":["a","a","a"]})", R"({"age":3,"x":1})", "3"})
    EXPECT_FALSE(FitsSchema(person, text)) << text;
  EXPECT_TRUE(FitsSchema(R"({"type": ["null", "boolean"]})", "null"));
  EXPECT_TRUE(FitsSchema(R"({"anyOf": [{"const": {"a": 1}}, {"type": "number"}]})", R"({"a":1})"));
  EXPECT_TRUE(FitsSchema(R"({"type": "string", "pattern": "^[a-z]+\"?$"})", R"("ab\"")"));
  EXPECT_FALSE(FitsSchema(R"({"type": "string", "pattern": "."})", R"(""")"));
  EXPECT_TRUE(FitsSchema(
      R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})", R"([1, "a"])"));
  EXPECT_FALSE(FitsSchema(R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": false})", "[1, 2]"));
  EXPECT_TRUE(FitsSchema(R"({"type": "object"})", R"({"any": [1]})"));
  EXPECT_TRUE(FitsSchema("{}", R"([1, "x"])"));
  EXPECT_TRUE(FitsSchema(R"({"type": ["string", "null"], "maxLength": 1})", R"("a")"));
  EXPECT_FALSE(FitsSchema(R"({"type": ["string", "null"], "maxLength": 1})", R"("ab")"));
  EXPECT_TRUE(FitsSchema(R"({"type": "null", "x-order": 1, "example": null, "writeOnly": true})", "null"));
}

TEST(JsonSchema, FollowsReferencesThatReferToThemselves) {
  const std::string list = R"({"$ref": "#/$defs/list", "$defs": {"list": {"type": "object", "properties": {
      "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["value", "next"]}}})";
  EXPECT_TRUE(FitsSchema(list, R"({"value":1,"next":{"value":2,"next":null}})"));
  EXPECT_FALSE(FitsSchema(list, R"({"value":1,"next":{"value":2}})"));
}

/// Numbers of random ranges are those that arithmetic allows.
TEST(NumberRange, TakesTheNumbersBetweenItsBounds) {
  Random random(12);
  const auto number = [&](std::int64_t spread, int decimals) {
    const std::int64_t value =
        static_cast<std::int64_t>(random.Below(2 * static_cast<std::uint64_t>(spread) + 1)) - spread;
    std::string digits = std::to_string(std::abs(value));
    if (decimals > 0) {
      digits.insert(0, static_cast<std::size_t>(std::max<std::int64_t>(0, decimals + 1 - std::ssize(digits))), '0');
      digits.insert(digits.size() - static_cast<std::size_t>(decimals), ".");
    }
    return std::pair((value < 0 ? "-" : "") + digits, value * (decimals == 0 ? 100 : decimals == 1 ? 10 : 1));
  };
  int taken = 0, left = 0;
  for (int round = 0; round < 600; ++round) {
    const std::int64_t spread = std::int64_t{1} << random.Below(14);
    NumberRange range{.integers = random.Below(2) == 0};
    std::optional<std::int64_t> least, most;  // in hundredths, as all values here
    if (random.Below(4) != 0) {
      const auto [text, value] = number(spread, static_cast<int>(random.Below(3)));
      range.least = ParseDecimal(text).value();
      least = value;
      range.above_least = random.Below(2) == 0;
    }
    if (random.Below(4) != 0) {
      const auto [text, value] = number(spread, static_cast<int>(random.Below(3)));
      range.most = ParseDecimal(text).value();
      most = value;
      range.below_most = random.Below(2) == 0;
    }
    std::int64_t multiple = 0;
    if (random.Below(3) == 0) {
      const std::vector<std::pair<const char*, std::int64_t>> multiples = {
          {"3", 300}, {"5", 500}, {"0.5", 50}, {"0.25", 25}, {"0.1", 10}, {"1", 100}, {"100", 10000}, {"1.5", 150}};
      const auto& [text, value] = multiples[random.Below(multiples.size())];
      range.multiple_of = ParseDecimal(text).value();
      multiple = value;
    }
    Grammar grammar;
    grammar.NewRule();
    const auto start = AddNumberRange(range, grammar, grammar.End());
    if (!start) {
      EXPECT_THAT(start.error().message(), HasSubstr("no number fits"));
      EXPECT_TRUE(least && most && (*least > *most || *most - *least < 10'000));
      continue;
    }
    grammar.SetRule(0, *start);
    GrammarMachine machine(std::move(grammar));
    for (int i = 0; i < 60; ++i) {
      const int decimals = static_cast<int>(random.Below(3));
      auto [text, value] = number(spread * 2, decimals);
      if (i == 0 && least) value = *least, text = fmt::format("{:.2f}", static_cast<double>(value) / 100);
      // A number has as many digits behind the point as its multiple, at most.
      const int most_decimals = range.integers        ? 0
                                : multiple == 0       ? 18
                                : multiple % 100 == 0 ? 0
                                : multiple % 10 == 0  ? 1
                                                      : 2;
      const std::size_t point = text.find('.');
      const bool fits = (point == text.npos || static_cast<int>(text.size() - point) - 1 <= most_decimals) &&
                        (!least || (range.above_least ? value > *least : value >= *least)) &&
                        (!most || (range.below_most ? value < *most : value <= *most)) &&
                        (multiple == 0 || value % multiple == 0) && !text.starts_with("-0.00") && text != "-0.0";
      ASSERT_EQ(Fits(machine, text), fits) << text << " in round " << round;
      (fits ? taken : left) += 1;
    }
    EXPECT_FALSE(Fits(machine, "-0"));
    EXPECT_FALSE(Fits(machine, "00"));
  }
  EXPECT_GT(taken, 2000);
  EXPECT_GT(left, 2000);
}

TEST(NumberRange, ReadsDecimals) {
  const std::vector<std::tuple<const char*, bool, const char*, const char*>> numbers = {
      {"0", false, "0", ""},      {"-0.0", false, "0", ""},       {"12.50", false, "12", "5"},
      {"1e3", false, "1000", ""}, {"-1.5e-3", true, "0", "0015"}, {"1.25E+1", false, "12", "5"},
      {"0.1", false, "0", "1"}};
  for (const auto& [text, negative, whole, fraction] : numbers) {
    const Decimal decimal = ParseDecimal(text).value();
    EXPECT_EQ(std::tuple(decimal.negative, decimal.whole, decimal.fraction),
              std::tuple(negative, std::string(whole), std::string(fraction)))
        << text;
  }
  EXPECT_FALSE(ParseDecimal("1e999999999"));
  EXPECT_FALSE(ParseDecimal("1e-999999999"));
}

TEST(JsonSchema, TakesNumbersBetweenBounds) {
  EXPECT_TRUE(FitsSchema(R"({"type": "integer", "minimum": 3})", "3"));
  EXPECT_FALSE(FitsSchema(R"({"type": "integer", "minimum": 3})", "2"));
  EXPECT_FALSE(FitsSchema(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": 3})", "3"));
  EXPECT_FALSE(FitsSchema(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true})", "3")) << "draft 4";
  EXPECT_TRUE(FitsSchema(R"({"type": "number", "minimum": 0, "maximum": 1})", "0.25"));
  EXPECT_FALSE(FitsSchema(R"({"type": "number", "minimum": 0, "maximum": 1})", "1.01"));
  EXPECT_TRUE(FitsSchema(R"({"type": ["integer", "null"], "multipleOf": 3})", "-27"));
  EXPECT_FALSE(FitsSchema(R"({"type": ["integer", "null"], "multipleOf": 3})", "28"));
  EXPECT_TRUE(FitsSchema(R"({"type": "integer", "format": "int32"})", "-2147483648"));
  EXPECT_FALSE(FitsSchema(R"({"type": "integer", "format": "int32"})", "2147483648"));
}

TEST(JsonSchema, TakesFormatsOfStrings) {
  const std::vector<std::tuple<const char*, std::vector<const char*>, std::vector<const char*>>> formats = {
      {"date",
       {"2024-02-29", "2000-02-29", "1999-12-31"},
       {"2023-02-29", "1900-02-29", "2024-04-31", "0000-01-01", "24-1-1"}},
      {"time", {"23:59:59Z", "00:00:00.123+05:30"}, {"24:00:00Z", "12:00:00", "12:60:00Z"}},
      {"date-time", {"2026-12-01T10:00:00Z"}, {"2026-12-01 10:00:00Z", "2026-12-01"}},
      {"duration", {"P1Y2M3D", "PT1H30M", "P2W", "P1DT12H"}, {"P", "PT", "P1S", "1D"}},
      {"email", {"a.b+c@example.org", "x@host"}, {"a@", "@b", "a b@c", ".a@b"}},
      {"hostname", {"example.org", "a-b.c", "localhost"}, {"-a", "a-", "a..b", "a_b", ""}},
      {"ipv4", {"0.0.0.0", "255.1.20.199"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
      {"ipv6",
       {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::8", "::ffff:1.2.3.4",
        "1:2:3:4:5:6:1.2.3.4", "fe80::1:2"},
       {":", "1:2:3:4:5:6:7", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "1:2:3:4:5:6:7::8", "::1.2.3", ":1"}},
      {"uri",
       {"https://u:p@example.org:80/a/b?c=d#e", "urn:isbn:1", "mailto:a@b", "http://[::1]/", "file:///x"},
       {"//a/b", "a b:c", "http://a b", "%41:"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"}},
      {"password", {"anything"}, {}}};
  for (const auto& [format, right, wrong] : formats) {
    const std::string schema = fmt::format(R"({{"type": "string", "format": "{}"}})", format);
    for (const char* text : right)
      EXPECT_TRUE(FitsSchema(schema, fmt::format("\"{}\"", text))) << format << " " << text;
    for (const char* text : wrong)
      EXPECT_FALSE(FitsSchema(schema, fmt::format("\"{}\"", text))) << format << " " << text;
  }
}

TEST(JsonSchema, TakesPatternsAnywhereInAString) {
  EXPECT_TRUE(FitsSchema(R"({"pattern": "a+"})", R"("xxaayy")"));
  EXPECT_TRUE(FitsSchema(R"({"pattern": "^x-"})", R"("x-\"y")"));
  EXPECT_FALSE(FitsSchema(R"({"pattern": "^x-"})", R"("yx-")"));
  EXPECT_TRUE(FitsSchema(R"({"pattern": "^a|b$"})", R"("xb")"));
  EXPECT_FALSE(FitsSchema(R"({"pattern": "^a|b$"})", R"("bx")"));
  EXPECT_FALSE(FitsSchema(R"({"pattern": "^a$"})", R"("aa")"));
}

TEST(JsonSchema, TakesMembersThatAreNotNamed) {
  const char* map =
      R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2})";
  EXPECT_TRUE(FitsSchema(map, R"({"a": 1, "b\"": 2})"));
  EXPECT_FALSE(FitsSchema(map, "{}"));
  EXPECT_FALSE(FitsSchema(map, R"({"a": 1, "b": 2, "c": 3})"));
  EXPECT_FALSE(FitsSchema(map, R"({"a": "1"})"));
  const char* mixed =
      R"({"properties": {"name": {"type": "string"}, "né": {}}, "required": ["name"], "additionalProperties": {"type": "integer"}})";
  EXPECT_TRUE(FitsSchema(mixed, R"({"name": "x", "names": 1, "na": 2, "": 3, "nè": 4})"));
  EXPECT_TRUE(FitsSchema(mixed, R"({"name": "x"})"));
  EXPECT_FALSE(FitsSchema(mixed, R"({"na": 2})")) << "name is required";
  EXPECT_FALSE(FitsSchema(mixed, R"({"name": "x", "name": 1})")) << "a name has one value";
  EXPECT_FALSE(FitsSchema(mixed, R"({"name": "x", "né": 1, "né": 1})"));
  EXPECT_FALSE(FitsSchema(mixed, R"({"name": "x", "other": "y"})"));
  const char* patterns =
      R"({"type": "object", "patternProperties": {"^x-": {"type": "null"}}, "additionalProperties": false})";
  EXPECT_TRUE(FitsSchema(patterns, R"({"x-a": null, "x-": null})"));
  EXPECT_FALSE(FitsSchema(patterns, R"({"y": null})"));
  const char* names = R"({"type": "object", "propertyNames": {"maxLength": 2}})";
  EXPECT_TRUE(FitsSchema(names, R"({"ab": [1]})"));
  EXPECT_FALSE(FitsSchema(names, R"({"abc": 1})"));
  EXPECT_TRUE(FitsSchema(R"({"required": ["a"]})", R"({"a": [1]})"));
  EXPECT_FALSE(FitsSchema(R"({"required": ["a"]})", "{}"));
}

TEST(JsonSchema, JoinsWhatHoldsAtOnce) {
  const char* both =
      R"({"allOf": [{"$ref": "#/$defs/named"}, {"properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}],
      "$defs": {"named": {"$ref": "#/$defs/first"}, "first": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}})";
  EXPECT_TRUE(FitsSchema(both, R"({"name": "a", "age": 3})"));
  EXPECT_FALSE(FitsSchema(both, R"({"name": "a"})"));
  EXPECT_FALSE(FitsSchema(both, R"({"name": "a", "age": -3})"));
  const char* beside =
      R"({"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})";
  EXPECT_TRUE(FitsSchema(beside, R"({"b": 1})"));
  EXPECT_FALSE(FitsSchema(beside, "{}"));
  EXPECT_TRUE(FitsSchema(
      R"({"allOf": [{"type": "number"}, {"type": ["integer", "string"]}, {"maximum": 5}, {"maximum": 3}]})", "3"));
  EXPECT_FALSE(FitsSchema(
      R"({"allOf": [{"type": "number"}, {"type": ["integer", "string"]}, {"maximum": 5}, {"maximum": 3}]})", "4"));
  EXPECT_FALSE(FitsSchema(R"({"type": "string", "enum": ["a", 1]})", "1"));
  EXPECT_TRUE(FitsSchema(R"({"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}})", "3"));
  EXPECT_FALSE(FitsSchema(R"({"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}})", "4"));
  // What pydantic writes for a union that a member tells apart.
  EXPECT_TRUE(FitsSchema(
      R"({"oneOf": [{"properties": {"k": {"const": "a"}}, "required": ["k"]}, {"properties": {"k": {"const": "b"}}, "required": ["k"]}],
      "discriminator": {"propertyName": "k"}})",
      R"({"k": "b"})"));
}

TEST(JsonSchema, NamesWhatItDoesNotSupport) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"type": ["integer", "null"], "multipleOf": 301})", "more than 100"},
      {R"({"type": "integer", "multipleOf": 0})", "above 0"},
      {R"({"type": "integer", "minimum": 3.2, "maximum": 3.9})", "no number fits"},
      {R"({"type": "integer", "minimum": "3"})", "minimum should be a number"},
      {R"({"type": ["string", "null"], "items": {}})", "#: \"items\""},
      {R"({"type": "string", "minimum": 3})", "#: \"minimum\""},
      {R"({"type": "object", "properties": {"a": {"type": "string", "format": "iri"}}})", "#/properties/a: \"format\""},
      {R"({"$ref": "https://example.org/x"})", "out of the schema"},
      {R"({"$ref": "#/nowhere"})", "no #/nowhere"},
      {R"({"type": "thing"})", "unknown type"},
      {R"({"type": "object", "properties": {}, "required": ["x"], "additionalProperties": false})",
       "\"x\" is required"},
      {R"({"type": "object", "properties": {"x": false}, "required": ["x"]})", "\"x\" is required"},
      {R"({"type": "string", "anyOf": [{"type": "integer"}]})", "no type is allowed by both"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})", "for ever"},
      {R"({"type": "string", "minLength": 1, "pattern": "a"})", "only one of"},
      {R"({"enum": []})", "not empty"},
      {R"({"allOf": [{"not": {}}, {}]})", "\"not\""},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "differ in \"pattern\""},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}]})",
       "additionalProperties beside"},
      {fmt::format(R"({{"properties": {{"{}": {{}}}}, "additionalProperties": {{"type": "null"}}}})",
                   std::string(5000, 'a')),
       "one of them 256"},
      {R"({"type": "array", "minItems": 5, "maxItems": 2})", "below"},
      {"5", "should be an object"}};
  for (const auto& [schema, says] : wrong) {
    const auto grammar = JsonSchemaGrammar(ParseJson(schema, "test").value());
    ASSERT_FALSE(grammar) << schema;
    EXPECT_THAT(grammar.error().message(), HasSubstr(says)) << schema;
  }
}

/// Tokens of one to four bytes, and an end.
class Words final : public tokenizer::Tokenizer {
 public:
  explicit Words(std::vector<std::string> words) : words_(std::move(words)) {}
  Status Encode(std::string_view, std::vector<TokenId>&) const override { return Fail(Code::kUnsupported, "no"); }
  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::string text;
    for (const TokenId id : ids) text += static_cast<std::size_t>(id) < words_.size() ? words_[id] : "";
    return text;
  }
  Result<std::string> Piece(TokenId id) const override {
    return static_cast<std::size_t>(id) < words_.size() ? words_[id] : "</s>";
  }
  int vocab_size() const override { return static_cast<int>(words_.size()) + 1; }
  TokenId bos() const override { return tokenizer::kNoToken; }
  TokenId eos() const override { return static_cast<TokenId>(words_.size()); }
  TokenId unk() const override { return tokenizer::kNoToken; }
  std::string_view kind() const override { return "bytes"; }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  std::vector<std::string> words_;
  std::string fingerprint_ = "00000000";
};

/// Texts of random tokens that a mask left fit when they end, and can always go on.
TEST(Constraint, RandomTokensMakeTextsThatFit) {
  Random random(12);
  std::vector<std::string> words;
  for (int byte = 0; byte < 256; ++byte) words.emplace_back(1, static_cast<char>(byte));
  for (const char* word :
       {"{\"", "\": ", "true", "tru", "e}", ", \"", "12", "\"}", "nul", "[[", "]]", "ab", "é", " \n"})
    words.emplace_back(word);
  const Words tokenizer(words);
  const auto vocabulary = std::make_shared<const TokenBytes>(tokenizer);
  const Json schema = ParseJson(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array",
      "items": {"type": ["boolean", "null"]}}, "c": {"type": "string", "pattern": "(ab|é){1,3}"}}, "required": ["b"]})",
                                "test")
                          .value();
  Constraint constraint(JsonSchemaGrammar(schema).value(), vocabulary);
  const std::vector<TokenId> ends = {tokenizer.eos()};
  int ended = 0;
  for (int round = 0; round < 200; ++round) {
    Constraint::State state = constraint.start();
    std::vector<TokenId> made;
    while (made.size() < 200) {
      std::vector<float> logits(static_cast<std::size_t>(tokenizer.vocab_size()), 0.0F);
      ASSERT_TRUE(constraint.Mask(state, ends, logits)) << *tokenizer.Decode(made);
      std::vector<TokenId> left;
      for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!std::isinf(logits[i])) left.push_back(static_cast<TokenId>(i));
      }
      const TokenId token = left[random.Below(left.size())];
      if (token == tokenizer.eos()) {
        const std::string text = *tokenizer.Decode(made);
        const auto parsed = ParseJson(text, "made");
        ASSERT_TRUE(parsed && parsed->contains("b")) << text;
        ++ended;
        break;
      }
      made.push_back(token);
      state = constraint.Accept(state, token);
    }
  }
  EXPECT_GT(ended, 50);
}

/// Returns the words of all letters of `letters` with up to `most` letters.
std::vector<std::string> WordsOf(std::string_view letters, std::size_t most) {
  std::vector<std::string> words(letters.size());
  for (std::size_t i = 0; i < letters.size(); ++i) words[i] = letters[i];
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (words[at].size() == most) continue;
    for (const char letter : letters) words.push_back(words[at] + letter);
  }
  return words;
}

/// "Where were the last 120 e?" has 2^120 states. Texts go on all the same, with bounded memory, and the same tokens
/// are left whatever other texts did before.
TEST(Constraint, TextsOutliveStatesThatAreDropped) {
  const Words tokenizer(WordsOf("ae ", 8));
  const auto vocabulary = std::make_shared<const TokenBytes>(tokenizer);
  const auto make = [&] { return Constraint(OfRegex("[ae ]*e[ae ]{120}"), vocabulary); };
  const std::vector<TokenId> ends = {tokenizer.eos()};
  Constraint busy = make();
  const auto text_of = [&](Constraint& constraint, std::uint64_t seed) {
    Random random(seed);
    Constraint::State state = constraint.start();
    std::vector<TokenId> made;
    while (made.size() < 30) {
      std::vector<float> logits(static_cast<std::size_t>(tokenizer.vocab_size()), 0.0F);
      EXPECT_TRUE(constraint.Mask(state, ends, logits));
      TokenId token = static_cast<TokenId>(random.Below(logits.size()));
      while (std::isinf(logits[static_cast<std::size_t>(token)])) token = (token + 1) % tokenizer.vocab_size();
      if (token == tokenizer.eos()) break;
      made.push_back(token);
      state = constraint.Accept(state, token);
    }
    return made;
  };
  std::vector<std::vector<TokenId>> texts;
  for (std::uint64_t seed = 0; seed < 3; ++seed) texts.push_back(text_of(busy, seed));
  EXPECT_LT(busy.bytes(), 3 * GrammarMachine::kMaxBytes);
  Constraint fresh = make();
  EXPECT_EQ(text_of(fresh, 2), texts[2]);
}

/// A state of many places leaves short tokens only, and few texts of it end the server's patience.
TEST(Constraint, LeavesShortTokensWhereAllWouldTakeTooLong) {
  const Words tokenizer(WordsOf("ab", 6));
  std::string pattern = "[ab]*(?:";
  for (int i = 0; i < 90; ++i) pattern += (i > 0 ? "|a[ab]{" : "a[ab]{") + std::to_string(900 + i) + "}\\x01";
  Constraint constraint(OfRegex(pattern + ")"), std::make_shared<const TokenBytes>(tokenizer));
  Constraint::State state = constraint.start();
  std::vector<float> logits(static_cast<std::size_t>(tokenizer.vocab_size()), 0.0F);
  ASSERT_TRUE(constraint.Mask(state, {}, logits));
  EXPECT_FALSE(std::isinf(logits[static_cast<std::size_t>(tokenizer.vocab_size() - 2)])) << "a long token";
  for (int i = 0; i < 400; ++i) state = constraint.Accept(state, 0);
  std::ranges::fill(logits, 0.0F);
  ASSERT_TRUE(constraint.Mask(state, {}, logits));
  EXPECT_FALSE(std::isinf(logits[0]));
  EXPECT_TRUE(std::isinf(logits[static_cast<std::size_t>(tokenizer.vocab_size() - 2)])) << "a long token";
  EXPECT_LT(constraint.bytes(), 3 * GrammarMachine::kMaxBytes);
}

/// A server lives longer than the stacks of one object.
TEST(Constraint, WearsOutWithItsStacks) {
  std::vector<std::string> words;
  for (const char* word : {"{", "}", "[", "]", "\"", ":", ",", "a"}) words.emplace_back(word);
  const Words tokenizer(words);
  Constraint constraint(JsonObjectGrammar(), std::make_shared<const TokenBytes>(tokenizer));
  EXPECT_FALSE(constraint.worn());
  // Arrays and objects within each other: each order of them is a stack of its own.
  Random random(5);
  for (int round = 0; round < 20'000 && !constraint.worn(); ++round) {
    Constraint::State state = constraint.start();
    for (const char* token = "{\"a\":"; *token != 0; ++token) {
      state = constraint.Accept(state, static_cast<TokenId>(std::string("{}[]\":,a").find(*token)));
    }
    for (int depth = 0; depth < 20; ++depth) {
      for (const char* token = random.Below(2) == 0 ? "[" : "{\"a\":"; *token != 0; ++token) {
        state = constraint.Accept(state, static_cast<TokenId>(std::string("{}[]\":,a").find(*token)));
      }
      ASSERT_FALSE(state.dead());
    }
  }
  EXPECT_TRUE(constraint.worn());
}

}  // namespace
}  // namespace millrace::serve
