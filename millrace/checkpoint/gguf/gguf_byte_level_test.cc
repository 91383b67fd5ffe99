#include "millrace/checkpoint/gguf/gguf_byte_level.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/json.h"
#include "millrace/checkpoint/gguf/gguf_vocabulary.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;
using Metadata = std::map<std::string, GgufValue>;
using Texts = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

/// A small vocabulary as a chat model has it: words, special tokens, one that is text, and rows that pad the matrices.
Metadata Chat() {
  return {{"tokenizer.ggml.model", std::string("gpt2")},
          {"tokenizer.ggml.pre", std::string("llama-bpe")},
          {"tokenizer.ggml.tokens", Texts{"a", "b", "ab", "<s>", "<eot>", "<think>", "[PAD6]", "[PAD7]"}},
          {"tokenizer.ggml.token_type", Numbers{1, 1, 1, 3, 3, 4, 5, 5}},
          {"tokenizer.ggml.merges", Texts{"a b"}},
          {"tokenizer.ggml.bos_token_id", std::int64_t{3}},
          {"tokenizer.ggml.eos_token_id", std::int64_t{4}},
          {"tokenizer.chat_template", std::string("{{ messages }}")}};
}

Json TokenizerJson(const Metadata& metadata) {
  const auto files = ByteLevelFilesOf({.metadata = metadata});
  EXPECT_TRUE(files) << files.error().ToString();
  return files ? *ParseJson(files->at("tokenizer.json"), "tokenizer.json") : Json();
}

std::string RefusalOf(const Metadata& metadata) {
  const GgufTokenizer tokenizer = TokenizerOf({.metadata = metadata});
  EXPECT_TRUE(tokenizer.files.empty());
  return tokenizer.refusal;
}

TEST(GgufByteLevel, WordsAndAddedTokensAreToldApart) {
  const Json json = TokenizerJson(Chat());
  EXPECT_EQ(DumpJson(json["model"]["vocab"]), R"({"a":0,"b":1,"ab":2})") << "padding is left out";
  EXPECT_EQ(DumpJson(json["model"]["merges"]), R"(["a b"])");
  EXPECT_EQ(json["model"]["ignore_merges"], true);
  ASSERT_EQ(json["added_tokens"].size(), 3u);
  EXPECT_EQ(json["added_tokens"][0]["content"], "<s>");
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["added_tokens"][2]["id"], 5);
  EXPECT_EQ(json["added_tokens"][2]["special"], false);
  const Json& processor = json["post_processor"]["processors"][1];
  EXPECT_EQ(DumpJson(processor["single"]),
            R"([{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}])");
  const Json config =
      *ParseJson(ByteLevelFilesOf({.metadata = Chat()})->at("tokenizer_config.json"), "tokenizer_config.json");
  EXPECT_EQ(config["eos_token"], "<eot>");
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["chat_template"], "{{ messages }}");
  EXPECT_FALSE(config.contains("pad_token"));
}

TEST(GgufByteLevel, FlagsAndRolesDecideAboutTheEnds) {
  Metadata metadata = Chat();
  metadata["tokenizer.ggml.add_bos_token"] = false;
  metadata["tokenizer.ggml.add_eos_token"] = true;
  metadata["tokenizer.ggml.eos_token_id"] = std::int64_t{2};  // an old file, which calls it a word
  Json json = TokenizerJson(metadata);
  EXPECT_EQ(DumpJson(json["post_processor"]["processors"][1]["single"]),
            R"([{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"ab","type_id":0}}])");
  EXPECT_EQ(json["added_tokens"][0]["content"], "ab") << "a special token nevertheless";
  metadata["tokenizer.ggml.add_eos_token"] = false;
  EXPECT_EQ(TokenizerJson(metadata)["post_processor"]["type"], "ByteLevel");
  metadata["tokenizer.ggml.pre"] = std::string("gpt-2");
  metadata.erase("tokenizer.ggml.add_bos_token");
  EXPECT_EQ(TokenizerJson(metadata)["post_processor"]["type"], "ByteLevel") << "GPT-2 adds none by itself";
  metadata["tokenizer.ggml.add_bos_token"] = true;
  metadata.erase("tokenizer.ggml.bos_token_id");
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("does not say which one"));
}

TEST(GgufByteLevel, UnusedTokensBetweenOthersKeepTheirNumbers) {
  Metadata metadata = Chat();
  metadata["tokenizer.ggml.token_type"] = Numbers{1, 1, 1, 3, 5, 4, 3, 5};
  const Json json = TokenizerJson(metadata);
  EXPECT_EQ(DumpJson(json["model"]["vocab"]), R"({"a":0,"b":1,"ab":2})") << "the end is special by its role";
  metadata["tokenizer.ggml.eos_token_id"] = std::int64_t{3};
  EXPECT_EQ(TokenizerJson(metadata)["model"]["vocab"].size(), 5u) << "behind the unused one the library goes on";
}

TEST(GgufByteLevel, WhatCannotBeReadIsNamed) {
  Metadata metadata = Chat();
  metadata["tokenizer.ggml.pre"] = std::string("jina-v2-zh");
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("splits texts as \"jina-v2-zh\""));
  metadata.erase("tokenizer.ggml.pre");
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("convert the model again"));
  metadata = Chat();
  metadata["tokenizer.ggml.tokens"] = Texts{"a", "b", "a", "<s>", "<eot>", "<think>", "[PAD6]", "[PAD7]"};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("\"a\" twice"));
  metadata = Chat();
  metadata["tokenizer.ggml.token_type"] = Numbers{1};
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("8 tokens and 1 types"));
  metadata.erase("tokenizer.ggml.merges");
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("no list of merges"));
  metadata["tokenizer.ggml.model"] = std::string("t5");
  EXPECT_THAT(RefusalOf(metadata), HasSubstr("of the kind t5"));
  EXPECT_THAT(RefusalOf({}), HasSubstr("no tokenizer"));
}

TEST(GgufByteLevel, ComesBackAsTheSameMetadata) {
  for (const char* pre : {"default", "gpt-2", "llama-bpe", "qwen2"}) {
    Metadata metadata = Chat();
    metadata["tokenizer.ggml.pre"] = std::string(pre);
    metadata["tokenizer.ggml.add_bos_token"] = true;
    metadata["tokenizer.ggml.add_eos_token"] = false;
    const auto files = *ByteLevelFilesOf({.metadata = metadata});
    Metadata again;
    const Status added = AddByteLevel(files.at("tokenizer.json"), files.at("tokenizer_config.json"), 8, again);
    ASSERT_TRUE(added) << pre << ": " << added.error().ToString();
    EXPECT_EQ(again, metadata) << pre;
  }
}

TEST(GgufByteLevel, TokenizersThatLlamaCppWouldReadAsOthersAreNotWritten) {
  const std::string good = ByteLevelFilesOf({.metadata = Chat()})->at("tokenizer.json");
  const auto refusal = [&](std::string_view from, std::string_view to, std::uint64_t tokens = 8) {
    std::string json = good;
    const std::size_t at = json.find(from);
    EXPECT_NE(at, json.npos) << from;
    if (at != json.npos) json.replace(at, from.size(), to);
    Metadata metadata;
    const Status added = AddByteLevel(json, "", tokens, metadata);
    EXPECT_TRUE(metadata.empty() || added);
    return added ? std::string() : added.error().ToString();
  };
  EXPECT_EQ(refusal("\"version\"", "\"version\""), "");
  EXPECT_THAT(refusal("\\\\p{N}{1,3}", "\\\\p{N}{1,4}"), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal("\"ignore_merges\":true", "\"ignore_merges\":false"), HasSubstr("ignore_merges"));
  EXPECT_THAT(refusal("\"normalizer\":null", R"("normalizer":{"type":"NFC"})"), HasSubstr("normalizer"));
  EXPECT_THAT(refusal("\"normalizer\":null", R"("normalizer":{"type":"Lowercase"})"), HasSubstr("normalizer"));
  EXPECT_THAT(refusal("\"dropout\":null", "\"dropout\":0.1"), HasSubstr("model"));
  EXPECT_THAT(refusal("\"byte_fallback\":false", "\"byte_fallback\":true"), HasSubstr("model"));
  EXPECT_THAT(refusal("\"type\":\"BPE\"", "\"type\":\"WordPiece\""), HasSubstr("model"));
  EXPECT_THAT(refusal("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Fuse\""), HasSubstr("decoder"));
  EXPECT_THAT(refusal("\"version\"", "\"version\"", 5), HasSubstr("behind the 5 of the model"));
  EXPECT_THAT(refusal("{\"version\"", "{version"), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace millrace::checkpoint
