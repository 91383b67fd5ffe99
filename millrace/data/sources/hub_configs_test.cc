#include "millrace/data/sources/hub_configs.h"

#include <gmock/gmock.h>

#include "millrace/data/sources/sources.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PutText;

TEST(HubConfigs, PatternsAreThoseOfFsspec) {
  const std::tuple<const char*, const char*, bool> cases[] = {
      {"train.jsonl", "train.jsonl", true},
      {"train.jsonl", "train_jsonl", false},
      {"*.jsonl", "a.jsonl", true},
      {"*.jsonl", "data/a.jsonl", false},
      {"data/train-*", "data/train-00000-of-00002.parquet", true},
      {"data/train-*", "data/train-x/y", false},
      {"**/*.jsonl", "a.jsonl", true},
      {"**/*.jsonl", "x/y/a.jsonl", true},
      {"data/**", "data/x/y", true},
      {"data/**", "datax", false},
      {"a/**/b", "a/b", true},
      {"a/**/b", "a/x/y/b", true},
      {"a/**/b", "axb", false},
      {"?.txt", "a.txt", true},
      {"?.txt", "/.txt", false},
      {"[0-9][!a].x", "1b.x", true},
      {"[0-9][!a].x", "1a.x", false},
      {"[0-9][!a].x", "xb.x", false},
      {"[]x].y", "].y", true},
      {"[", "[", true},
      {"", "", true},
      {"", "a", false},
  };
  for (auto [pattern, path, matches] : cases) EXPECT_EQ(HubPatternMatches(pattern, path), matches) << pattern << path;
  std::string stars;
  for (int i = 0; i < 100; ++i) stars += "**a";
  EXPECT_FALSE(HubPatternMatches(stars, std::string(2000, 'b'))) << "and at once";
}

class HubConfigSources : public ::testing::Test {
 protected:
  void SetUp() override { connection_["bucket"] = store_; }
  void Put(std::initializer_list<const char*> keys) {
    for (const char* key : keys) PutText(*store_, key, "{}\n");
  }
  void PutReadme(const std::string& yaml) { PutText(*store_, "d/README.md", "---\n" + yaml + "---\n# A data set\n"); }
  /// Returns the objects of a source as keys in d/, or the error.
  std::vector<std::string> Resolve(const std::string& wanted) {
    std::vector<DataSource> sources = {{.url = "s3://bucket/d" + wanted, .format = "jsonl"}};
    auto resolved = ResolveSources(connection_, sources);
    if (!resolved) return {resolved.error().ToString()};
    std::vector<std::string> keys;
    for (const DataObject& object : resolved->objects) keys.push_back(object.info.key.substr(2));
    return keys;
  }
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::TestConnection connection_;
};

TEST_F(HubConfigSources, SplitsOfOneConfiguration) {
  Put({"d/one.jsonl", "d/two.jsonl", "d/_odd.jsonl", "d/rest/a.jsonl", "d/rest/b.jsonl", "d/unused.jsonl"});
  PutReadme(
      "license: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path:\n    - one.jsonl\n"
      "    - \"*.jsonl\"\n  - split: held-out\n    path: rest/*.jsonl\n  - split: odd\n    path: ./_odd.jsonl\n"
      "  - split: gone\n    path: gone.jsonl\n");
  EXPECT_THAT(Resolve("/#held-out"), ElementsAre(HasSubstr("the README names d/gone.jsonl, and it is not there")));
  Put({"d/gone.jsonl"});
  EXPECT_THAT(Resolve("/#held-out"), ElementsAre("rest/a.jsonl", "rest/b.jsonl"));
  EXPECT_THAT(Resolve("#default:odd"), ElementsAre("_odd.jsonl"));
  EXPECT_THAT(Resolve("/"), ElementsAre("_odd.jsonl", "gone.jsonl", "one.jsonl", "two.jsonl", "unused.jsonl"))
      << "train, if nothing is said";
  EXPECT_THAT(Resolve("/#test"),
              ElementsAre(HasSubstr("looking for data at s3://bucket/d/#test: unknown split \"test\"; "
                                    "choose one of the configuration \"default\": train, held-out, odd, "
                                    "gone")));
}

TEST_F(HubConfigSources, SeveralConfigurations) {
  Put({"d/en/train.jsonl", "d/en/test.jsonl", "d/de/0.jsonl", "d/fr.jsonl"});
  const std::string configs =
      "configs:\n- config_name: en\n  data_dir: en\n- config_name: de\n  data_dir: ./de/\n"
      "- config_name: fr\n  data_files: fr.jsonl\n";
  PutReadme(configs);
  EXPECT_THAT(Resolve("/#en:test"), ElementsAre("en/test.jsonl"));
  EXPECT_THAT(Resolve("/#en"), ElementsAre("en/train.jsonl"));
  EXPECT_THAT(Resolve("/#de"), ElementsAre("de/0.jsonl"));
  EXPECT_THAT(Resolve("/#fr:train"), ElementsAre("fr.jsonl"));
  EXPECT_THAT(Resolve("/"), ElementsAre(HasSubstr("the configurations en, de, fr; say which, as URL#en")));
  EXPECT_THAT(Resolve("/#train"), ElementsAre(HasSubstr("say which, as URL#en:train")));
  EXPECT_THAT(Resolve("/#it:train"),
              ElementsAre(HasSubstr("no configuration \"it\"; choose one of the README's: en, de, fr")));
  EXPECT_THAT(Resolve("/#fr:test"), ElementsAre(HasSubstr("train (configurations are en, de, fr)")));
  PutReadme(configs + "  default: true\n");
  EXPECT_THAT(Resolve("/"), ElementsAre("fr.jsonl"));
  PutReadme(configs +
            "- config_name: default\n  data_files: {train: [\"de/*\", en/train.jsonl], dev: en/test.jsonl}\n");
  EXPECT_THAT(Resolve("/#train"), ElementsAre("de/0.jsonl", "en/train.jsonl"));
  EXPECT_THAT(Resolve("/#dev"), ElementsAre("en/test.jsonl"));
}

/// The options of load_dataset decide the format, unless the source has one.
TEST_F(HubConfigSources, OptionsOfTheLoaderAreFollowedOrNamed) {
  PutText(*store_, "d/x.csv", "text;n\na;1\n");
  const auto resolve = [&](const std::string& options, const std::string& format) -> std::string {
    PutReadme("configs:\n- config_name: default\n  data_files: x.csv\n" + options +
              "- config_name: other\n  data_files: x.csv\n  skiprows: 3\n");
    const std::vector<DataSource> sources = {{.url = "s3://bucket/d/", .format = format}};
    const auto resolved = ResolveSources(connection_, sources);
    if (!resolved) return resolved.error().ToString();
    return std::string(resolved->objects[0].content->format());
  };
  EXPECT_EQ(resolve("", ""), "csv:text;n");
  EXPECT_EQ(resolve("  sep: \";\"\n  features: []\n", ""), "csv+delimiter=;:text;n");
  EXPECT_EQ(resolve("  delimiter: \"\\t\"\n", ""), "csv+delimiter=tab:text;n");
  EXPECT_EQ(resolve("  sep: \";\"\n", "csv"), "csv:text;n");
  EXPECT_EQ(resolve("  field: data\n", ""), "json:data");
  EXPECT_EQ(resolve("  sample_by: line\n", ""), "lines");
  EXPECT_EQ(resolve("  sample_by: document\n", ""), "text");
  EXPECT_THAT(resolve("  sample_by: paragraph\n", ""), AllOf(HasSubstr("sample_by"), HasSubstr("README.md:5")));
  EXPECT_THAT(resolve("  column_names: [a]\n", ""), HasSubstr("column_names"));
  EXPECT_THAT(resolve("  sep: \";\"\n  field: data\n", ""), HasSubstr("does not fit"));
}

TEST_F(HubConfigSources, WhatDeclaresNothingChangesNothing) {
  Put({"d/train.jsonl", "d/test.jsonl"});
  for (const char* readme : {"# Just words\n---\nconfigs:\n---\n", "---\nlicense: [broken\n---\n", "---\nconfigs:\n",
                             "---\nconfigs: []\n---\n"}) {
    PutText(*store_, "d/README.md", readme);
    EXPECT_EQ(Resolve("/").size(), 2u) << readme << Resolve("/")[0];
  }
}

TEST_F(HubConfigSources, WhatCannotBeReadIsNamedByItsLine) {
  Put({"d/train.jsonl"});
  const std::pair<std::string, std::string> cases[] = {
      {"configs:\n- config_name: [a\n", "s3://bucket/d/README.md"},
      {"configs:\n- data_files: a\n", "README.md:3:"},
      {"configs:\n- config_name: a\n  data_files: hf://b/c\n", "is not inside of the data set"},
      {"configs:\n- config_name: a\n  data_dir: /etc\n", "is not inside of the data set"},
      {"configs:\n- config_name: a\n  data_files:\n  - split: train\n", "needs a split and a path"},
      {"configs:\n- config_name: a\n- config_name: a\n", "is there twice"},
      {"configs:\n- config_name: a\n  data_files:\n  - {split: x, path: a}\n  - {split: x, path: b}\n", "there twice"},
  };
  for (const auto& [yaml, why] : cases) {
    PutReadme(yaml);
    EXPECT_THAT(Resolve("/"), ElementsAre(HasSubstr(why))) << yaml;
  }
}

}  // namespace
}  // namespace millrace::data
