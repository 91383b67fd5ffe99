#include "millrace/object/hf/settings.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "millrace/base/files/files.h"

namespace millrace::object::hf {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Settings> Load(const Variables& variables) {
  return LoadSettings([&](const char* name) -> const char* {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string TokenOf(const Variables& variables) {
  auto settings = Load(variables);
  return settings ? settings->token : "<" + settings.error().ToString() + ">";
}

TEST(HubSettings, Endpoint) {
  EXPECT_EQ(Load({})->endpoint, "https://huggingface.co");
  EXPECT_EQ(Load({{"HF_ENDPOINT", "http://127.0.0.1:80/hub//"}})->endpoint, "http://127.0.0.1:80/hub");
  EXPECT_EQ(Load({{"HF_ENDPOINT", "http://mirror/hub"}})->Authority(), "mirror/hub");
  for (const char* bad : {"mirror", "ftp://mirror", "https://", "https://user:password@mirror"}) {
    auto settings = Load({{"HF_ENDPOINT", bad}});
    ASSERT_FALSE(settings) << bad;
    EXPECT_TRUE(settings.error().message().contains("HF_ENDPOINT"));
  }
}

TEST(HubSettings, TheTokenIsFoundWhereHuggingfaceHubFindsIt) {
  TempDir folder = std::move(*TempDir::Create());
  const std::string home = folder.path();
  auto write = [&](const std::string& path, const char* token) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    ASSERT_TRUE(WriteFileAtomic(path, AsBytes(std::string_view(token))));
  };
  Variables variables = {{"HOME", home}};
  EXPECT_EQ(TokenOf(variables), "");
  write(home + "/.cache/huggingface/token", "hf_cache\n");
  EXPECT_EQ(TokenOf(variables), "hf_cache");
  write(home + "/xdg/huggingface/token", "hf_xdg");
  variables["XDG_CACHE_HOME"] = home + "/xdg";
  EXPECT_EQ(TokenOf(variables), "hf_xdg");
  write(home + "/hf/token", "hf_home");
  variables["HF_HOME"] = "~/hf";
  EXPECT_EQ(TokenOf(variables), "hf_home");
  write(home + "/elsewhere", "hf_path");
  variables["HF_TOKEN_PATH"] = home + "/elsewhere";
  EXPECT_EQ(TokenOf(variables), "hf_path");
  variables["HUGGING_FACE_HUB_TOKEN"] = "hf_old";
  EXPECT_EQ(TokenOf(variables), "hf_old");
  variables["HF_TOKEN"] = " hf_new\n";
  EXPECT_EQ(TokenOf(variables), "hf_new");
}

TEST(HubSettings, ABrokenTokenIsNotShown) {
  auto settings = Load({{"HF_TOKEN", "hf_secret\nX-Header: 1"}});
  ASSERT_FALSE(settings);
  EXPECT_TRUE(settings.error().ToString().contains("HF_TOKEN"));
  EXPECT_FALSE(settings.error().ToString().contains("secret"));
}

TEST(HubSettings, Origins) {
  EXPECT_EQ(OriginOf("https://Hub.example/a?b"), "https://hub.example");
  EXPECT_EQ(OriginOf("https://hub.example:443/"), "https://hub.example");
  EXPECT_EQ(OriginOf("http://hub.example:80"), "http://hub.example");
  EXPECT_NE(OriginOf("http://127.0.0.1:1/"), OriginOf("http://127.0.0.1:2/"));
  EXPECT_NE(OriginOf("https://hub.example@evil.example/"), OriginOf("https://hub.example/"));
}

}  // namespace
}  // namespace millrace::object::hf
