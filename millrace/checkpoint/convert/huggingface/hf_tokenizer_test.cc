#include "millrace/checkpoint/convert/huggingface/hf_tokenizer.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

#include <gmock/gmock.h>

namespace millrace::checkpoint {
namespace {

TEST(HfTokenizerTest, ATokenizerIsNamedByItsContentAndGetsItsConfiguration) {
  const std::string fast = R"({"version":"1.0","added_tokens":[{"id":0,"content":"<s>"}],"model":{"type":"BPE"}})";
  auto files = TokenizerFilesOf(fast, "s3://models/any-name");
  ASSERT_TRUE(files) << files.error().ToString();
  EXPECT_EQ(files->at("tokenizer.json"), fast);
  const Json config = *ParseJson(files->at("tokenizer_config.json"), "it");
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_FALSE(config.contains("eos_token"));

  files = TokenizerFilesOf("\x0a\x0e\x0a\x05<unk>", "s3://models/any-name");
  ASSERT_TRUE(files) << files.error().ToString();
  EXPECT_TRUE(files->contains("tokenizer.model"));
  EXPECT_EQ((*ParseJson(files->at("tokenizer_config.json"), "it"))["tokenizer_class"], "LlamaTokenizer");

  EXPECT_EQ(TokenizerFilesOf("IQ== 0\n", "ranks.tiktoken").error().code(), Code::kUnsupported);
  EXPECT_EQ(TokenizerFilesOf("{}", "other.json").error().code(), Code::kUnsupported);
}

TEST(HfTokenizerTest, OnlyARunsCheckpointWithoutFilesOfItsOwnNamesATokenizer) {
  Manifest manifest;
  EXPECT_FALSE(FindTokenizerOrigin(manifest));
  manifest.meta = {{"tokenizer", {{"url", "s3://demo/tokenizer.model"}, {"fingerprint", "f"}}}};
  ASSERT_TRUE(FindTokenizerOrigin(manifest));
  EXPECT_EQ(FindTokenizerOrigin(manifest)->url, "s3://demo/tokenizer.model");
  manifest.tensors["files/tokenizer.json"] = {DType::kU8, {3}};
  EXPECT_FALSE(FindTokenizerOrigin(manifest));
}

TEST(HfTokenizerTest, WhatTheFolderDeclaresComesWithATokenizersFile) {
  const std::shared_ptr<object::Store> store = object::MakeMemoryStore();
  testing::StoreConnection connection(store);
  const auto put = [&](const std::string& key, std::string_view content) {
    ASSERT_TRUE(object::Put(*store, key, AsBytes(content)));
  };
  const std::string fast = R"({"added_tokens":[{"id":0,"content":"</s>"}],"model":{"type":"BPE"}})";
  const std::string config = R"({"eos_token": "<|eot_id|>"})";
  put("m/tokenizer.json", fast);
  put("m/other.json", fast);
  put("m/special_tokens_map.json", config);
  const auto eos = [&](std::string_view file) {
    const auto files = TokenizerFilesAt(connection, fmt::format("s3://bucket/m/{}", file), {}).value();
    return (*ParseJson(files.at("tokenizer_config.json"), "it"))["eos_token"];
  };
  EXPECT_EQ(eos("tokenizer.json"), "<|eot_id|>");
  EXPECT_EQ(eos("other.json"), "</s>");
  put("m/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(eos("tokenizer.json"), "<|im_end|>");
}

}  // namespace
}  // namespace millrace::checkpoint
