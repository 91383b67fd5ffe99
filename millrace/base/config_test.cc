#include "millrace/base/config.h"

#include <gtest/gtest.h>

namespace millrace::config {
namespace {

constexpr const char* kText = R"(name: demo
train:
  steps: 300
  lr: 3.0e-4
  deep: {on: true, off: "no"}
sources:
  - {url: a}
  - {url: b}
)";

TEST(Config, ReadsValuesWithTheirPlaces) {
  Document document = *Document::Parse(kText, "job.yaml");
  Node root = document.Root();
  EXPECT_EQ(*root["name"].String(), "demo");
  EXPECT_EQ(*root["train"]["steps"].Int(1, 1000), 300);
  EXPECT_DOUBLE_EQ(*root["train"]["lr"].Number(0, 1), 3e-4);
  EXPECT_TRUE(*root["train"]["deep"]["on"].Bool());
  ASSERT_EQ(root["sources"].Elements().size(), 2u);
  EXPECT_EQ(*root["sources"].Elements()[1]["url"].String(), "b");
  EXPECT_EQ(root["sources"].Elements()[1]["url"].path(), "sources[1].url");
  EXPECT_EQ(root["train"]["steps"].Where(), "job.yaml:3:10");
  EXPECT_FALSE(root["absent"]);
  EXPECT_FALSE(root["absent"]["below"]);
}

TEST(Config, ErrorsNameFileLineColumnAndKey) {
  Document document = *Document::Parse(kText, "job.yaml");
  Node train = document.Root()["train"];
  EXPECT_EQ(train["steps"].Int(1, 10).error().message(), "job.yaml:3:10: train.steps: should be from 1 to 10, not 300");
  EXPECT_EQ(train["lr"].Int(1, 10).error().message(), "job.yaml:4:7: train.lr: should be a whole number, not 3.0e-4");
  EXPECT_FALSE(train["deep"].Number(0, 1));
  EXPECT_FALSE(train["deep"]["off"].Bool());  // quoted: text, not a truth value
  EXPECT_EQ(train.RejectUnknown({"steps", "lr", "depp"}).error().message(),
            "job.yaml:5:3: train: unknown key \"deep\"; did you mean \"depp\"?");
  EXPECT_TRUE(train.RejectUnknown({"steps", "lr", "deep"}));
}

TEST(Config, SyntaxErrorsAndTrapsAreRefused) {
  EXPECT_TRUE(Document::Parse("a: [1, 2", "f.yaml").error().message().starts_with("f.yaml:"));
  EXPECT_EQ(Document::Parse("a: 1\na: 2", "f.yaml").error().message(),
            "f.yaml:2:1: key \"a\" is given twice; remove one of them");
  EXPECT_EQ(Document::Parse("a:\n\tb: 1\n", "f.yaml").error().message(),
            "f.yaml:2: a tab cannot indent in YAML; use spaces");
  EXPECT_FALSE(Document::Parse(std::string(200, '[') + std::string(200, ']'), "f.yaml"));
  std::string laughs = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 30; ++i) laughs += fmt::format("a{}: &a{} [*a{}, *a{}]\n", i, i, i - 1, i - 1);
  EXPECT_FALSE(Document::Parse(laughs, "f.yaml"));
  EXPECT_TRUE(Document::Parse("", "empty.yaml"));
}

TEST(Config, AssignmentsOverride) {
  Document document = *Document::Parse(kText, "job.yaml");
  EXPECT_TRUE(document.Set("train.steps=7"));
  EXPECT_TRUE(document.Set("run.nodes=2"));
  EXPECT_EQ(*document.Root()["train"]["steps"].Int(1, 1000), 7);
  EXPECT_EQ(*document.Root()["run"]["nodes"].Int(1, 10), 2);
  EXPECT_TRUE(document.Set("train.steps=many"));
  EXPECT_EQ(document.Root()["train"]["steps"].Int(1, 1000).error().message(),
            "--set train.steps: train.steps: should be a whole number, not many");
  EXPECT_FALSE(document.Set("name.below=1"));
  EXPECT_FALSE(document.Set("no-equals"));
}

}  // namespace
}  // namespace millrace::config
