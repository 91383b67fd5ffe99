#include "millrace/serve/chat/model_chat.h"

#include <gtest/gtest.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/object/hf/testing/hub_server.h"
#include "millrace/object/open/open.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::serve {
namespace {

using object::hf::testing::HubServer;

/// Sets a variable of the environment until the end of the test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(ReadTemplateFile, FromTheHub) {
  const auto hub = *HubServer::Start({});
  hub->Commit("models/mill/race", {{"chat.jinja", "{{ messages }}"},
                                   {"tokenizer_config.json", R"({"chat_template": "<tool_call>", "x": 1})"},
                                   {"config.json", "{}"}});
  const Variable endpoint("HF_ENDPOINT", hub->url());
  const auto connection = *object::OpenConnection({});
  const auto read = [&](std::string_view file) {
    return ReadTemplateFile(*connection, fmt::format("hf://mill/race/{}", file));
  };
  auto jinja = read("chat.jinja");
  ASSERT_TRUE(jinja) << jinja.error().ToString();
  EXPECT_EQ((*jinja)->text, "{{ messages }}");
  EXPECT_EQ((*read("tokenizer_config.json"))->text, "<tool_call>");
  EXPECT_EQ(read("config.json").error().code(), Code::kInvalidArgument);
  auto none = read("none.jinja");
  ASSERT_TRUE(none) << none.error().ToString();
  EXPECT_FALSE(*none);
}

TEST(ReadTemplateFile, FromADisk) {
  const TempDir folder = *TempDir::Create();
  const auto connection = *object::OpenConnection({});
  std::ofstream(folder.path() / "t.jinja") << "text";
  EXPECT_EQ((*ReadTemplateFile(*connection, (folder.path() / "t.jinja").string()))->text, "text");
  EXPECT_FALSE(*ReadTemplateFile(*connection, (folder.path() / "none").string()));
}

TEST(ReadChatTemplate, TakesTheTemplateForTools) {
  const TempDir folder = *TempDir::Create();
  const auto connection = *object::OpenConnection({});
  std::vector<checkpoint::SafetensorsEntry> weights{{"weight", {checkpoint::DType::kU8, {4}}}};
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  for (const auto& [file, content] :
       {std::pair<std::string, std::string>("model.safetensors", checkpoint::MakeSafetensorsHeader(weights) + "abcd"),
        {"config.json", R"({"model_type": "llama"})"},
        {"chat_template.jinja", "talk"},
        {"additional_chat_templates/tool_use.jinja", "tools"}}) {
    std::ofstream(folder.path() / file, std::ios::binary) << content;
  }
  constexpr std::string_view kTokens = R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})";
  const auto tokens = tokenizer::Load(AsBytes(kTokens), "tokenizer.json").value();
  const auto model = checkpoint::ModelSource::Open(*connection, folder.path().string(), std::nullopt, {});
  ASSERT_TRUE(model) << model.error().ToString();
  const auto source = ReadChatTemplate(*model, *tokens);
  ASSERT_TRUE(source) << source.error().ToString();
  EXPECT_EQ(source->text, "talk");
  EXPECT_EQ(source->tool_text, "tools");
}

TEST(ReadEndTokens, AreThoseOfAllFiles) {
  const TempDir folder = *TempDir::Create();
  const auto connection = *object::OpenConnection({});
  const auto put = [&](const char* file, std::string_view content) {
    std::ofstream(folder.path() / file, std::ios::binary) << content;
  };
  std::vector<checkpoint::SafetensorsEntry> weights{{"weight", {checkpoint::DType::kU8, {4}}}};
  put("model.safetensors", checkpoint::MakeSafetensorsHeader(weights) + "abcd");
  constexpr std::string_view kTokens =
      R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "</s>": 4}, "unk_token": "a"},
          "added_tokens": [{"id": 4, "content": "</s>", "special": true}]})";
  const auto tokens = tokenizer::Load(AsBytes(kTokens), "tokenizer.json").value();
  const auto ends = [&] {
    const auto model = checkpoint::ModelSource::Open(*connection, folder.path().string(), std::nullopt, {});
    EXPECT_TRUE(model) << model.error().ToString();
    return ReadEndTokens(*model, *tokens).value();
  };
  put("config.json", R"({"model_type": "llama", "eos_token_id": 1})");
  EXPECT_EQ(ends(), (std::vector<TokenId>{1, 4}));
  put("generation_config.json", R"({"eos_token_id": [2, 3, 999]})");
  EXPECT_EQ(ends(), (std::vector<TokenId>{2, 3, 1, 4})) << "999 is no token";
  put("config.json", R"({"model_type": "llama"})");
  put("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(ends(), (std::vector<TokenId>{4}));
}

}  // namespace
}  // namespace millrace::serve
