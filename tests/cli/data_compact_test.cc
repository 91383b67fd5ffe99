// `millrace data compact` as a script sees it, against the embedded endpoint.
#include <gmock/gmock.h>

#include "millrace/base/text.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DataCompactTest : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (int i = 0; i < 30; ++i) {
      WriteLocal(fmt::format("pages/{:02}.jsonl", i),
                 DumpJson({{"id", i}, {"text", fmt::format("Page {} of the book has this text.", i % 20)}}) + "\n");
    }
    WriteLocal("pages/99.jsonl", "{\"text\": \"SPAM, page 1 of 2\"}\nnot JSON\n");
    const auto copied = Millrace({"cp", "-r", "pages/", "s3://bucket/pages/"});
    ASSERT_EQ(copied.exit, 0) << copied.err;
  }
};

TEST_F(DataCompactTest, MergesFiltersAndReports) {
  const auto ran = Millrace({"data", "compact", "s3://bucket/pages/", "--output", "s3://bucket/out/", "--dedup",
                             "exact", "--reject", "^SPAM", "--reject", "page 7", "--compression", "zstd"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("s3://bucket/out/: 31 objects became 1 shard in "));
  EXPECT_THAT(ran.out, HasSubstr("s3://bucket/pages/99.jsonl:2 not_json: not JSON\n"));
  EXPECT_THAT(ran.out, HasSubstr("s3://bucket/pages/99.jsonl:1: SPAM, page 1 of 2\n"));
  EXPECT_THAT(ran.out, HasSubstr("s3://bucket/pages/20.jsonl:1 = s3://bucket/pages/00.jsonl:1: Page 0 of"));
  EXPECT_THAT(Keys("s3://bucket/out/"), ElementsAre("out/report.json", "out/shard-00000.jsonl.zst"));
  const Json report = ParseJson(Millrace({"cat", "s3://bucket/out/report.json"}).out, "report").value();
  EXPECT_EQ(report["read"]["records"], 32);
  EXPECT_EQ(report["removed"]["exact_duplicate"]["records"], 10);
  EXPECT_EQ(report["kept"]["records"], 20);
  // The folder is a source as it is.
  const auto inspected = Millrace({"data", "inspect", "s3://bucket/out/", "--json"});
  EXPECT_THAT(inspected.out, HasSubstr("\"records\":20"));
  EXPECT_THAT(inspected.out, Not(HasSubstr("\"broken\":1")));
}

TEST_F(DataCompactTest, TakesAJobFileAndOnlyLooks) {
  WriteLocal(
      "job.yaml",
      "name: books\nmodel: {from: \"s3://bucket/model/\"}\ndata:\n  sources: [{url: \"s3://bucket/pages/0*.jsonl\"}]\n"
      "  tokenizer: s3://bucket/t.model\n  template: \"{id}\"\ntrain: {steps: 1}\n");
  const auto ran = Millrace({"data", "compact", "job.yaml", "--dry-run", "--json", "--min-chars", "1"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  const Json told = ran.objects().at(0);
  EXPECT_EQ(told["event"], "would_compact");
  EXPECT_EQ(told["options"]["template"], "{id}");
  EXPECT_EQ(told["kept"]["records"], 10);
  EXPECT_TRUE(told["shards"].empty());
}

TEST_F(DataCompactTest, RefusesAFolderThatIsNotEmpty) {
  const std::vector<std::string> command = {"data", "compact", "s3://bucket/pages/", "--output", "s3://bucket/out"};
  ASSERT_EQ(Millrace(command).exit, 0);
  const auto refused = Millrace(command);
  EXPECT_EQ(refused.exit, 1);
  EXPECT_THAT(refused.err, HasSubstr("replace that result (--force)"));
  auto forced = command;
  forced.emplace_back("--force");
  EXPECT_EQ(Millrace(forced).exit, 0);
  const auto inside = Millrace({"data", "compact", "s3://bucket/pages/", "--output", "s3://bucket/", "--force"});
  EXPECT_EQ(inside.exit, 2);
  EXPECT_THAT(inside.err, HasSubstr("name a folder in the bucket"));
}

}  // namespace
}  // namespace millrace
