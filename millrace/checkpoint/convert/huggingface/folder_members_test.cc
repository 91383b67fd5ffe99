// Whatever a folder of others has: an import keeps it, names it or refuses it, and an export gives back what is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/open_source.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/config/families.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFamilies[] = {"llama", "gpt2", "bert"};
constexpr const char* kFileNames[] = {"generation_config.json",
                                      "chat_template.jinja",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "preprocessor_config.json",
                                      "LICENSE",
                                      "README.md",
                                      "additional_chat_templates/tool_use.jinja",
                                      "additional_chat_templates/rag.jinja"};
constexpr const char* kOtherWeights[] = {"pytorch_model.bin", "tf_model.h5", "onnx.onnx"};

/// A folder with a model of a family and random other contents.
struct RandomFolder {
  Json config;
  std::map<std::string, std::string> tensors;  ///< the bytes of 4 float32, by name
  std::map<std::string, std::string> files;
  std::set<std::string> unknown_members, other_weights;
};

RandomFolder MakeFolder(Random& random) {
  RandomFolder folder;
  folder.config = {{"model_type", kFamilies[random.Below(3)]}};
  if (folder.config["model_type"] == "llama") {
    folder.config.update({{"vocab_size", 4},
                          {"hidden_size", 4},
                          {"intermediate_size", 4},
                          {"num_hidden_layers", 1},
                          {"num_attention_heads", 1}});
  }
  for (std::uint64_t i = random.Below(4); i > 0; --i) {
    const std::string member = fmt::format("x_{}", random.Next());
    folder.config[member] = random.Below(2) == 0 ? Json(random.Uniform()) : Json{{"a", {1, nullptr, "é"}}};
    folder.unknown_members.insert(member);
  }
  if (random.Below(2) == 0) folder.config["eos_token_id"] = {1, 2};
  const auto names = (*engine::ParseModelConfig(folder.config, "c"))->Shape().ParameterNames();
  for (const std::string& name : names) folder.tensors[name];
  for (std::uint64_t i = random.Below(3); i > 0; --i) folder.tensors[fmt::format("own.{}", random.Next())];
  for (auto& [name, bytes] : folder.tensors) {
    for (int i = 0; i < 16; ++i) bytes += static_cast<char>(random.Below(256));
  }
  for (const char* name : kFileNames) {
    if (random.Below(2) == 0) folder.files[name] = fmt::format("{{\"content\": {}}}", random.Next());
  }
  for (std::uint64_t i = random.Below(3); i > 0; --i) folder.files[fmt::format("notes-{}.txt", i)] = "of others";
  for (const char* name : kOtherWeights) {
    if (random.Below(4) == 0) folder.other_weights.insert(name);
  }
  return folder;
}

class FolderMembersTest : public ::testing::Test {
 protected:
  void Put(const std::string& key, const std::string& bytes) { ASSERT_TRUE(object::Put(*store_, key, AsBytes(bytes))); }
  void PutFolder(const std::string& key, const RandomFolder& folder) {
    Put(key + "config.json", DumpJson(folder.config));
    std::vector<SafetensorsEntry> entries;
    std::string body;
    for (const auto& [name, bytes] : folder.tensors) {
      entries.push_back({.name = name, .meta = {.dtype = DType::kF32, .shape = {4}}});
      body += bytes;
    }
    Put(key + "model.safetensors", MakeSafetensorsHeader(entries, {}) + body);
    for (const auto& [name, content] : folder.files) Put(key + name, content);
    for (const std::string& name : folder.other_weights) Put(key + name, "weights");
  }
  std::string Get(const std::string& key) {
    const auto content = object::GetAll(*store_, key, 1 * kMiB);
    return content && *content ? (*content)->bytes : "absent";
  }
  std::string Bytes(Reader& reader, const std::string& tensor) {
    const auto found = reader.manifest().tensors.find(tensor);
    if (found == reader.manifest().tensors.end()) return "absent";
    std::string bytes(found->second.bytes(), '\0');
    EXPECT_TRUE(reader.Read(tensor, 0, AsWritableBytes(bytes)));
    return bytes;
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
  MemoryBudget budget_{64 * kMiB};
};

TEST_F(FolderMembersTest, NothingIsDroppedSilently) {
  Random random(31);
  for (int round = 0; round < 60; ++round) {
    const RandomFolder folder = MakeFolder(random);
    const std::string from = fmt::format("in-{}/", round), to = fmt::format("out-{}/", round);
    PutFolder(from, folder);
    auto source = OpenSource(connection_, "s3://bucket/" + from, ForeignFormat::kHuggingFace);
    ASSERT_TRUE(source) << source.error().ToString();
    const std::string notes = fmt::format("{}", fmt::join(source->notes, "\n"));
    for (const std::string& member : folder.unknown_members) EXPECT_THAT(notes, HasSubstr(member));
    for (const std::string& name : folder.other_weights) EXPECT_THAT(notes, HasSubstr(name));
    if (folder.unknown_members.empty() && folder.other_weights.empty()) {
      EXPECT_EQ(notes, "");
    }
    const std::string run = fmt::format("s3://bucket/run-{}", round);
    ASSERT_TRUE(Import(connection_, *std::move(source), run, budget_));
    const auto reader = Reader::Open(connection_, run).value();
    EXPECT_EQ(reader->manifest().meta.at(std::string(kMetaModelConfig)), folder.config);
    for (const auto& [name, bytes] : folder.tensors) EXPECT_EQ(Bytes(*reader, "model/" + name), bytes) << name;
    for (const auto& [name, content] : folder.files) EXPECT_EQ(Bytes(*reader, "files/" + name), content) << name;
    ASSERT_TRUE(Export(*reader, {store_, to}, budget_, {.format = ForeignFormat::kHuggingFace}));
    EXPECT_EQ(ParseJson(Get(to + "config.json"), "config").value(), folder.config);
    for (const auto& [name, content] : folder.files) EXPECT_EQ(Get(to + name), content) << name;
    const auto exported = OpenSource(connection_, "s3://bucket/" + to, ForeignFormat::kHuggingFace);
    ASSERT_TRUE(exported);
    for (const auto& [name, bytes] : folder.tensors) EXPECT_TRUE(exported->tensors.contains("model/" + name)) << name;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
