#include "millrace/serve/calls/call_reader.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/serve/calls/forced_call.h"
#include "millrace/serve/constraint/json_schema.h"

namespace millrace::serve {
namespace {

struct ReadCalls {
  std::string text;
  std::vector<ToolCallPart> calls;
};

/// Reads `text` in pieces of up to `most` bytes. The tools are f, g and "g h".
ReadCalls Read(ToolSyntax syntax, std::string_view text, std::size_t most = 1000, bool is_call = false) {
  ToolCallParser reader(syntax, {"f", "g", "g h"}, is_call);
  ReadCalls read;
  const auto take = [&](const AnswerParts& parts) {
    read.text += parts.text;
    for (const ToolCallPart& part : parts.calls) {
      if (part.id.empty()) {
        read.calls.at(part.index).arguments += part.arguments;
      } else {
        EXPECT_EQ(part.index, read.calls.size());
        EXPECT_EQ(part.arguments, "");
        read.calls.push_back(part);
      }
    }
  };
  for (std::size_t at = 0; at < text.size(); at += most) take(reader.Add(text.substr(at, most)));
  take(reader.Finish());
  EXPECT_EQ(reader.calls(), read.calls.size());
  return read;
}

/// "words|name(arguments)|…"
std::string Shown(const ReadCalls& read) {
  std::string shown = read.text;
  for (const ToolCallPart& call : read.calls) shown += fmt::format("|{}({})", call.name, call.arguments);
  return shown;
}

void Expect(ToolSyntax syntax, std::string_view text, std::string_view shown) {
  for (const std::size_t most : {1, 2, 3, 7, 1000}) {
    EXPECT_EQ(Shown(Read(syntax, text, most)), shown) << text << ", in pieces of " << most;
  }
}

TEST(ToolCallParser, ReadsHermesCalls) {
  constexpr auto kSyntax = ToolSyntax::kHermes;
  Expect(kSyntax, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "|f({\"a\": 1})");
  Expect(kSyntax,
         "I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}</tool_call>\n"
         "<tool_call>\n{\"arguments\": {}, \"name\": \"g h\"}\n</tool_call>\nDone",
         "I look.\n\nDone|f({\"a\": \"}\\\"{\"})|g h({})");
  Expect(kSyntax, "<tool_call>{\"name\": \"f\"}</tool_call>", "|f({})");
  Expect(kSyntax, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>", "|f({\"a\": 2})");
}

TEST(ToolCallParser, WhatIsNoCallStaysText) {
  constexpr auto kSyntax = ToolSyntax::kHermes;
  for (const std::string_view text :
       {"plain <b> words", " \n", "", "<tool_call", "<tool_call>", "<tool_call>no json", "a <tool_call> {\"x\": 1} b",
        "<tool_call>{\"name\": 5}", "<tool_call>{\"name\" \"f\"}</tool_call>", "<tool_call>{\"nam",
        "{\"name\": \"f\"}"}) {
    Expect(kSyntax, text, text);
  }
  Expect(kSyntax, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "|f({\"a\": 1)");
  Expect(ToolSyntax::kUnknown, "<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>");
}

TEST(ToolCallParser, OnlyToolsAreCalled) {
  const std::string alice = R"({"name": "Alice", "age": 30})", nobody = R"({"name": "h", "arguments": {"a": 1}})";
  const std::string later = R"({"arguments": {"a": 1}, "name": "h"})";
  for (const auto& object : {alice, nobody, later}) {
    Expect(ToolSyntax::kLlama3, object, object);
    Expect(ToolSyntax::kLlama3, "\n <|python_tag|> " + object, "\n <|python_tag|> " + object);
    for (const std::string& text : {"[" + object + "]", "[ " + object + ", {}]\n", "[TOOL_CALLS] [" + object + "]",
                                    " \n[TOOL_CALLS]" + object, "See: [TOOL_CALLS][" + object + "] ."}) {
      Expect(ToolSyntax::kMistral, text, text);
    }
    for (const std::string& text :
         {"\n<tool_call>\n" + object + "\n</tool_call>\n", "Well, <tool_call>" + object + "</tool_call>"}) {
      Expect(ToolSyntax::kHermes, text, text);
    }
  }
  const std::string call = R"({"name": "f", "parameters": {}})";
  Expect(ToolSyntax::kLlama3, call + "; " + nobody, "; " + nobody + "|f({})");
}

TEST(ToolCallParser, ACallHasArgumentsThatAreAnObject) {
  for (const std::string_view arguments : {"5", "[1]", "true", R"("words")", R"("[1]")"}) {
    const std::string object = fmt::format(R"({{"name": "f", "arguments": {}}})", arguments);
    Expect(ToolSyntax::kLlama3, object, object);
    Expect(ToolSyntax::kMistral, "[" + object + "]", "[" + object + "]");
    Expect(ToolSyntax::kHermes, "<tool_call>" + object + "</tool_call>", "<tool_call>" + object + "</tool_call>");
  }
  // A mark says that a call without arguments is one.
  for (const std::string_view none : {"", R"(, "arguments": null)", R"(, "parameters": "")"}) {
    const std::string object = fmt::format(R"({{"name": "f"{}}})", none);
    Expect(ToolSyntax::kLlama3, object, object);
    Expect(ToolSyntax::kMistral, "[" + object + "]", "[" + object + "]");
    Expect(ToolSyntax::kLlama3, "<|python_tag|>" + object, "|f({})");
    Expect(ToolSyntax::kMistral, "[TOOL_CALLS][" + object + "]", "|f({})");
    Expect(ToolSyntax::kHermes, "<tool_call>" + object + "</tool_call>", "|f({})");
  }
}

TEST(ToolCallParser, ReadsCallsOfLlama) {
  constexpr auto kSyntax = ToolSyntax::kLlama3;
  Expect(kSyntax, "{\"name\": \"f\", \"parameters\": {\"a\": [1, {}]}}", "|f({\"a\": [1, {}]})");
  Expect(kSyntax, "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "|f({})");
  Expect(kSyntax, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "|f({})|g({})");
  Expect(kSyntax, "{\"answer\": 1}", "{\"answer\": 1}");
  Expect(kSyntax, "It is {\"name\": \"f\"}", "It is {\"name\": \"f\"}");
}

TEST(ToolCallParser, ReadsMistralsCalls) {
  constexpr auto kSyntax = ToolSyntax::kMistral;
  const std::string calls = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
  Expect(kSyntax, "[TOOL_CALLS] " + calls, "|f({\"a\": 1})|g({})");
  Expect(kSyntax, "Well: [TOOL_CALLS]" + calls, "Well: |f({\"a\": 1})|g({})");
  Expect(kSyntax, calls, "|f({\"a\": 1})|g({})");
  Expect(kSyntax, "[1, 2]", "[1, 2]");
  EXPECT_EQ(Read(kSyntax, calls).calls[0].id.size(), 9U);
}

TEST(ToolCallParser, ReadsCallsThatBeginWithTheirName) {
  constexpr auto kMistral = ToolSyntax::kMistralNamed, kDeepSeek = ToolSyntax::kDeepSeek,
                 kTag = ToolSyntax::kFunctionTag;
  Expect(kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": \"}\"}}[TOOL_CALLS]g h[CALL_ID]012345678[ARGS]{}",
         "|f({\"a\": {\"b\": \"}\"}})|g h({})");
  Expect(kMistral, "Well. [TOOL_CALLS] f {\"a\": 1}", "Well. |f({\"a\": 1})");
  EXPECT_EQ(Read(kMistral, "[TOOL_CALLS]f[ARGS]{}").calls[0].id.size(), 9U);
  const std::string old = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>";
  Expect(kDeepSeek, "Hm.<｜tool▁calls▁begin｜>" + old + "\n" + old + "<｜tool▁calls▁end｜>",
         "Hm.|f({\"a\": 1})|f({\"a\": 1})");
  Expect(kDeepSeek,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
         "1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "|f({\"a\": 1})|g({})");
  Expect(kTag, "<function=f>{\"a\": 1}</function>\n<function=g>{}</function> Done", " Done|f({\"a\": 1})|g({})");
  // What has no name of a tool, or no arguments, is text.
  for (const auto& [syntax, text] :
       std::vector<std::pair<ToolSyntax, std::string>>{{kMistral, "[TOOL_CALLS]nobody[ARGS]{\"a\": 1}"},
                                                       {kMistral, "[TOOL_CALLS]f and so on"},
                                                       {kMistral, "[TOOL_CALLS]{\"a\": 1}"},
                                                       {kMistral, "f{\"a\": 1}"},
                                                       {kDeepSeek, "<｜tool▁call▁begin｜>h<｜tool▁sep｜>{}"},
                                                       {kDeepSeek, "half a <｜tool▁ca"},
                                                       {kTag, "<function=f>words</function>"},
                                                       {kTag, "<function=f"},
                                                       {kTag, "<function=" + std::string(600, 'f') + "{}"}}) {
    Expect(syntax, text, text);
  }
}

TEST(ToolCallParser, IdsDiffer) {
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const ReadCalls read = Read(ToolSyntax::kHermes, call + call);
  ASSERT_EQ(read.calls.size(), 2U);
  EXPECT_TRUE(read.calls[0].id.starts_with("call_"));
  EXPECT_NE(read.calls[0].id, read.calls[1].id);
}

TEST(ToolCallParser, AForcedCallIsTheWholeText) {
  for (const auto syntax : {ToolSyntax::kUnknown, ToolSyntax::kHermes, ToolSyntax::kMistral}) {
    EXPECT_EQ(Shown(Read(syntax, " {\"name\": \"f\", \"arguments\": {\"a\": 1}}", 3, true)), "|f({\"a\": 1})");
  }
}

TEST(ToolCallParser, AnyTextInAnyPiecesIsTheSame) {
  constexpr std::array<std::string_view, 21> kParts = {"<｜tool▁call▁begin｜>",
                                                       "<｜tool▁calls▁end｜>",
                                                       "<｜tool▁sep｜>",
                                                       "f",
                                                       "[ARGS]",
                                                       "<function=",
                                                       "```",
                                                       "<tool_call>",
                                                       "</tool_call>",
                                                       "[TOOL_CALLS]",
                                                       "{\"name\": \"f\"",
                                                       ", \"arguments\": ",
                                                       "{\"a\": 1}",
                                                       "}",
                                                       "[",
                                                       "]",
                                                       ",",
                                                       "\n",
                                                       "word",
                                                       "\"",
                                                       "<"};
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (std::uint64_t i = random.Below(8); i > 0; --i) text += kParts[random.Below(kParts.size())];
    for (const auto syntax : {ToolSyntax::kHermes, ToolSyntax::kLlama3, ToolSyntax::kMistral, ToolSyntax::kMistralNamed,
                              ToolSyntax::kDeepSeek, ToolSyntax::kFunctionTag}) {
      EXPECT_EQ(Shown(Read(syntax, text, 1 + random.Below(5))), Shown(Read(syntax, text))) << text;
    }
  }
}

TEST(CallSchema, FollowsTheParameters) {
  const Json tools = *ParseJson(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}},
                                      "required": ["x"], "$defs": {"n": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g"}}])",
                                "tools");
  const auto any = CallSchema(tools, {.kind = ToolChoice::Kind::kRequired}, ToolSyntax::kHermes);
  ASSERT_TRUE(any) << any.error().ToString();
  EXPECT_EQ((*any)["anyOf"].size(), 2U);
  EXPECT_EQ((*any)["anyOf"][0]["properties"]["name"]["const"], "f");
  EXPECT_TRUE(JsonSchemaGrammar(*any));
  const auto named = CallSchema(tools, {.kind = ToolChoice::Kind::kNamed, .name = "g"}, ToolSyntax::kLlama3);
  EXPECT_EQ((*named)["anyOf"].size(), 1U);
  EXPECT_TRUE((*named)["anyOf"][0]["properties"].contains("parameters"));
  EXPECT_TRUE(JsonSchemaGrammar(*named));
}

TEST(ToolSyntaxOf, ReadsTheTemplate) {
  EXPECT_EQ(ToolSyntaxOf("… <tool_call> …"), ToolSyntax::kHermes);
  EXPECT_EQ(ToolSyntaxOf("{{ '[TOOL_CALLS]' }}"), ToolSyntax::kMistral);
  EXPECT_EQ(ToolSyntaxOf("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"), ToolSyntax::kMistralNamed);
  EXPECT_EQ(ToolSyntaxOf("{{ '<｜tool▁call▁begin｜>' }}"), ToolSyntax::kDeepSeek);
  EXPECT_EQ(ToolSyntaxOf("<function=example>{...}</function>"), ToolSyntax::kFunctionTag);
  EXPECT_EQ(ToolSyntaxOf("<tool_call><function=example><parameter=a>"), ToolSyntax::kUnknown)
      << "arguments are no JSON";
  EXPECT_EQ(ToolSyntaxOf("<|python_tag|>"), ToolSyntax::kLlama3);
  EXPECT_EQ(ToolSyntaxOf("{{ messages }}"), ToolSyntax::kUnknown);
}

}  // namespace
}  // namespace millrace::serve
