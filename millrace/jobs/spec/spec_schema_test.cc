#include "millrace/jobs/spec/spec_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/config.h"
#include "millrace/base/hash/random.h"
#include "millrace/jobs/spec/foreign_words.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/testing/random_spec.h"
#include "millrace/jobs/testing/small_job.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns the schemas that a value may have: of a key that is a word or a map, both.
std::vector<Json> Alternatives(const Json& schema) {
  if (!schema.contains("anyOf")) return {schema};
  return schema["anyOf"].get<std::vector<Json>>();
}

/// Adds failures for keys of a document that its schema does not have.
void ExpectKeys(const config::Node& node, const Json& schema) {
  for (const Json& each : Alternatives(schema)) {
    if (each.contains("items") && node.IsSequence()) {
      for (const config::Node& element : node.Elements()) ExpectKeys(element, each["items"]);
    }
    if (!each.contains("properties") || !node.IsMap()) continue;
    for (const std::string& key : node.Keys()) {
      ASSERT_TRUE(each["properties"].contains(key)) << node.path() << " has " << key;
      ExpectKeys(node[key], each["properties"][key]);
    }
  }
}

TEST(JobSchema, HasEveryKeyThatAJobPrints) {
  const Json schema = JobSchema();
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    Spec spec = random_spec::RandomSpec(random);
    if (i % 2 == 1) random_spec::SetRandomObjective(random, spec);
    const auto document = config::Document::Parse(spec.Render(), "job.yaml");
    ASSERT_TRUE(document) << document.error().ToString();
    ExpectKeys(document->Root(), schema);
  }
}

void ExpectSentences(const std::string& path, const Json& schema) {
  for (const Json& each : Alternatives(schema)) {
    if (!each.contains("properties")) continue;
    for (const auto& [name, key] : each["properties"].items()) {
      const std::string sentence = key.value("description", "");
      EXPECT_TRUE(sentence.ends_with('.')) << path << name << ": " << sentence;
      EXPECT_FALSE(sentence.contains("](")) << path << name << " has a link";
      EXPECT_FALSE(key.value("x-since", "").empty()) << path << name;
      ExpectSentences(path + name + ".", key);
    }
  }
}

TEST(JobSchema, SaysASentenceOfEachKey) { ExpectSentences("", JobSchema()); }

TEST(JobSchema, HasTypesBoundsDefaultsAndUnits) {
  const Json schema = JobSchema();
  const Json& train = schema["properties"]["train"]["properties"];
  EXPECT_EQ(train["global_batch"]["type"], "integer");
  EXPECT_EQ(train["global_batch"]["minimum"], 1);
  EXPECT_EQ(train["global_batch"]["default"], 8);
  EXPECT_EQ(train["global_batch"]["x-unit"], "sequences");
  EXPECT_EQ(train["precision"]["enum"], (Json{"f32", "tf32", "bf16", "fp16", "fp8"}));
  EXPECT_EQ(train["seed"]["default"], 42);
  EXPECT_EQ(train["parallel"]["anyOf"][1]["properties"]["zero"]["maximum"], 3);
  EXPECT_EQ(schema["properties"]["data"]["properties"]["cache"]["properties"]["size"]["default"], 20 * kGiB);
  EXPECT_EQ(schema["properties"]["run"]["properties"]["connect_timeout"]["default"], "10m");
  EXPECT_EQ(schema["properties"]["name"]["x-required"], true);
}

TEST(JobSchema, SaysWhichKeysGoTogether) {
  const Json schema = JobSchema();
  const auto only = [&](const char* section, const char* inner, const char* key) {
    const Json& outer = schema["properties"][section]["properties"];
    return (*inner == 0 ? outer : outer[inner]["properties"])[key].value("x-only", Json());
  };
  EXPECT_EQ(only("train", "schedule", "power"),
            (Json::parse(R"([{"key": "train.schedule.name", "values": ["polynomial"]}])")));
  EXPECT_EQ(only("data", "", "best_fit"),
            (Json::parse(R"([{"key": "train.objective", "values": ["causal_lm", "dpo"]}])")));
  EXPECT_EQ(only("train", "optimizer", "betas"),
            (Json::parse(R"([{"key": "train.optimizer.name", "values": ["adamw", "lamb"]}])")));
  EXPECT_TRUE(only("train", "optimizer", "weight_decay").is_null()) << "each optimizer has it";
  EXPECT_EQ(schema["properties"]["train"]["properties"]["optimizer"]["properties"]["weight_decay"]["x-defaults"].size(),
            2);
  EXPECT_EQ(only("model", "config", "rotary_dim")[0]["values"], Json::array({"gptj"}));
}

TEST(KeyHint, NamesTheKeyForAnotherProgramsWord) {
  EXPECT_THAT(ParseSmall({"train.max_steps=5"}).error().ToString(),
              HasSubstr("train.max_steps: is a word of transformers: write train.steps"));
  EXPECT_THAT(ParseSmall({"learning_rate=5"}).error().ToString(), HasSubstr("write train.optimizer.lr"));
  EXPECT_THAT(ParseSmall({"train.per_device_train_batch_size=5"}).error().ToString(),
              HasSubstr("write train.micro_batch"));
  EXPECT_THAT(ParseSmall({"model.from=s3://models/x", "lora.target_modules=[q_proj]"}).error().ToString(),
              HasSubstr("is a word of PEFT: write lora.targets"));
  EXPECT_THAT(ParseSmall({"train.tensor-model-parallel-size=2"}).error().ToString(),
              HasSubstr("write tensor, in train.parallel"));
}

TEST(KeyHint, NamesTheSectionThatHasTheKey) {
  EXPECT_THAT(ParseSmall({"train.weight_decay=0.1"}).error().ToString(),
              HasSubstr("is not a key of train: write train.optimizer.weight_decay"));
  EXPECT_THAT(ParseSmall({"sequence_length=8"}).error().ToString(), HasSubstr("write data.sequence_length"));
  EXPECT_EQ(KeyHint("train", "setps"), "") << "the nearest key of the section is the better hint";
  EXPECT_THAT(KeysNamed("window"), ElementsAre("data.shuffle.window", "train.spikes.window"));
}

TEST(ForeignWords, NameKeysThatExist) {
  for (const ForeignWord& word : ForeignWords()) {
    EXPECT_EQ(FindForeignWord(word.word), &word) << word.word << " stands there twice";
    if (word.key.empty()) continue;
    const std::string_view name = word.key.substr(word.key.rfind('.') + 1);
    EXPECT_THAT(KeysNamed(name), testing::Contains(word.key)) << word.word;
  }
}

}  // namespace
}  // namespace millrace::jobs
