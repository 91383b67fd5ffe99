#include "millrace/data/documents/field_mismatch.h"

#include <gmock/gmock.h>

#include "millrace/data/index_builder.h"
#include "millrace/data/sources/sources.h"
#include "millrace/data/testing/dataset_fixture.h"
#include "millrace/data/testing/stored_object.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PutText;

class FieldMismatchTest : public testing::DatasetTest {
 protected:
  std::optional<FieldMismatch> Find(const std::string& name, const std::string& record_template) {
    const auto resolved = ResolveSources(connection_, std::vector<DataSource>{{"s3://corpus/" + name}}).value();
    const auto form = DocumentForm::OfTemplate(RecordTemplate::Parse(record_template).value());
    return FindFieldMismatch(resolved.objects.front(), form, {}).value();
  }
};

TEST_F(FieldMismatchTest, NamesWhatIsMissingAndWhatIsThere) {
  const std::string lines = "nonsense\n{\"title\": \"T\", \"text\": \"x\"}\n";
  PutText(*store_, "a.jsonl", lines);
  PutText(*store_, "a.jsonl.gz", testing::Gzip(lines));
  for (const char* name : {"a.jsonl", "a.jsonl.gz"}) {
    const auto found = Find(name, "{tilte} {text}");
    ASSERT_TRUE(found) << name;
    EXPECT_THAT(found->missing, ElementsAre("tilte"));
    EXPECT_THAT(found->present, ElementsAre("title", "text"));
    EXPECT_EQ(found->ToString(), "the records have no field tilte; they have title, text");
    EXPECT_FALSE(Find(name, "{title} {text}"));
    EXPECT_TRUE(found->in_all);
  }
  EXPECT_EQ(Find("a.jsonl", "{a}{b}")->ToString(), "the records have no fields a, b; they have title, text");
}

TEST_F(FieldMismatchTest, NamesWhatIsInANestedObject) {
  PutText(*store_, "a.jsonl", "{\"id\": 1, \"body\": {\"text\": \"x\", \"n\": 2}}\n");
  EXPECT_FALSE(Find("a.jsonl", "{body.text}"));
  EXPECT_EQ(Find("a.jsonl", "{body.content}")->ToString(),
            "the records have no field body.content; they have id, body.text, body.n");
}

TEST_F(FieldMismatchTest, SaysHowConversationsAreRead) {
  PutText(*store_, "a.jsonl", "{\"messages\": []}\n");
  EXPECT_THAT(Find("a.jsonl", "{prompt} {response}")->ToString(), HasSubstr("mode: sft with layout: auto or chatml"));
}

TEST_F(FieldMismatchTest, AnOpenDataSetSaysIt) {
  PutText(*store_, "a.jsonl", testing::RecordLine("T", "one") + testing::RecordLine("U", "two"));
  auto options = Options("s3://corpus/a.jsonl", SequenceMode::kPad, 0);
  options.template_text = "{content}";
  for (int i = 0; i < 2; ++i) {
    const auto refused = Open(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << "which no restart of a job can mend";
    EXPECT_THAT(refused.error().ToString(),
                HasSubstr("2 of 2 records cannot be used, which leaves none: the records have no field content; they "
                          "have id, title, text"))
        << (i == 0 ? "a new index" : "a kept index");
  }
}

}  // namespace
}  // namespace millrace::data
