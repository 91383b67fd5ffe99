#include "millrace/serve/chat/model_chat.h"

#include <gtest/gtest.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/object/hf/testing/hub_server.h"
#include "millrace/object/open/open.h"

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

}  // namespace
}  // namespace millrace::serve
