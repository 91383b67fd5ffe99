#include "millrace/data/formats/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/data/testing/bert_fixture.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using testing::Gzip;
using ::testing::HasSubstr;
using testing::PutText;
using testing::ReadBack;
using testing::StoredObject;
using testing::Zstd;

/// Returns the lines of JSON of a table whose format is `declared`.
std::string Read(std::string_view text, std::string_view declared) {
  auto store = object::MakeMemoryStore();
  PutText(*store, "o", text);
  DataObject object{store, *object::Head(*store, "o").value(), "s3://corpus/o"};
  const DataFormat format = FormatOf(declared, object, {}).value();
  return ReadBack(*StoredObject(text, format).object.content);
}

TEST(Table, QuotedFieldsHoldDelimitersNewlinesAndQuotes) {
  EXPECT_EQ(Read("sentence,label\n\"a, b\",1\n\"two\nlines\r\n\",0\n\"say \"\"yes\"\"\",1\n\"\",\"\"\n", "csv"),
            R"({"sentence":"a, b","label":"1"}
{"sentence":"two\nlines\r\n","label":"0"}
{"sentence":"say \"yes\"","label":"1"}
{"sentence":"","label":""}
)");
  EXPECT_EQ(Read("a\tb\n\"x\ty\"\t1\n", "tsv+quotes"), "{\"a\":\"x\\ty\",\"b\":\"1\"}\n");
}

TEST(Table, QuotesInsideOfFieldsArePartOfThem) {
  EXPECT_EQ(Read("a,b\nx\"y\",\"1\"2\"\n", "csv"), "{\"a\":\"x\\\"y\\\"\",\"b\":\"12\\\"\"}\n");
  EXPECT_EQ(Read("a\tb\n\"x\t\"\"\n", "tsv"), "{\"a\":\"\\\"x\",\"b\":\"\\\"\\\"\"}\n");
}

TEST(Table, EndsOfLinesAndByteOrderMarksAreNoPartOfFields) {
  EXPECT_EQ(Read("\xEF\xBB\xBF\"a\",b\r\n1,2\r\n\r\n\n3,4", "csv"),
            "{\"a\":\"1\",\"b\":\"2\"}\n{\"a\":\"3\",\"b\":\"4\"}\n");
  EXPECT_EQ(Read("\n\na\tb\n1\t2\r\n3\t4\r", "tsv"), "{\"a\":\"1\",\"b\":\"2\"}\n{\"a\":\"3\",\"b\":\"4\"}\n");
  EXPECT_EQ(Read("a\n\"\"\n", "csv"), "{\"a\":\"\"}\n") << "an empty field is not an empty line";
}

TEST(Table, RowsMayEndInCarriageReturns) {
  const std::string want = "{\"a\":\"1\",\"b\":\"x\"}\n{\"a\":\"2\",\"b\":\"y\\n\\rz\"}\n";
  EXPECT_EQ(Read("a,b\r1,x\r\r2,\"y\n\rz\"\r", "csv"), want);
  EXPECT_EQ(Read("\"a\",b\r1,x\r2,\"y\n\rz\"", "csv"), want);
  EXPECT_EQ(Read("a\tb\r1\tx\r", "tsv"), "{\"a\":\"1\",\"b\":\"x\"}\n");
  EXPECT_EQ(Read("1,x\r2,y\r", "csv+no_header"), "{\"0\":\"1\",\"1\":\"x\"}\n{\"0\":\"2\",\"1\":\"y\"}\n");
  EXPECT_EQ(Read("a\rb\r\rc", "lines"), "{\"text\":\"a\"}\n{\"text\":\"b\"}\n{\"text\":\"c\"}\n");
  EXPECT_EQ(Read("a\rb\nc\n", "lines"), "{\"text\":\"a\\rb\"}\n{\"text\":\"c\"}\n");
  EXPECT_EQ(Read("a,b\n1,x\ry\n", "csv"), "{\"a\":\"1\",\"b\":\"x\\ry\"}\n") << "the first row says how rows end";
}

TEST(Table, TheDelimiterOfCsvCanBeChosen) {
  const std::string want = "{\"a\":\"1,5\",\"b\":\"x;y\"}\n";
  EXPECT_EQ(Read("a;b\n1,5;\"x;y\"\n", "csv+delimiter=;"), want);
  EXPECT_EQ(Read("a\tb\n1,5\t\"x;y\"\n", "csv+delimiter=tab"), want);
  EXPECT_EQ(Read("a:b\n1,5:\"x;y\"\n", "csv+delimiter=colon"), want);
  for (const char* wrong :
       {"csv+delimiter=", "csv+delimiter=;;", "csv+delimiter=\"", "csv+delimiter=é", "tsv+delimiter=;", "jsonl+cr"}) {
    EXPECT_EQ(FormatOf(wrong, "a").error().code(), Code::kInvalidArgument) << wrong;
  }
}

TEST(Table, OfEqualNamesTheFirstStays) {
  EXPECT_EQ(Read("a,a,a.1,a\n1,2,3,4\n", "csv"), "{\"a\":\"1\",\"a.2\":\"2\",\"a.1\":\"3\",\"a.3\":\"4\"}\n");
}

TEST(Table, NamesOfFieldsMayBeQuotedOrNumbers) {
  EXPECT_EQ(Read("\"a \"\"b\"\"\n\",c\n1,2\n", "csv"), "{\"a \\\"b\\\"\\n\":\"1\",\"c\":\"2\"}\n");
  EXPECT_EQ(Read("gj04\t1\t\tOur friends\ngj04\t0\t*\tOne\n", "tsv+no_header"),
            "{\"0\":\"gj04\",\"1\":\"1\",\"2\":\"\",\"3\":\"Our friends\"}\n"
            "{\"0\":\"gj04\",\"1\":\"0\",\"2\":\"*\",\"3\":\"One\"}\n");
  EXPECT_EQ(Read("\"x\"\"\n\",1\n", "csv+no_header"), "{\"0\":\"x\\\"\\n\",\"1\":\"1\"}\n");
  EXPECT_EQ(Read("", "csv"), "");
}

TEST(Table, FormatsHaveNames) {
  const auto name = [](std::string_view declared, std::string_view key) {
    auto format = FormatOf(declared, key);
    return format ? format->Name() : std::string(CodeName(format.error().code()));
  };
  EXPECT_EQ(name("", "SST-2/train.tsv"), "tsv");
  EXPECT_EQ(name("", "a.csv.gz"), "csv+gzip");
  EXPECT_EQ(name("tsv+quotes+no_header", "a.csv.zst"), "tsv+zstd+quotes+no_header");
  EXPECT_EQ(name("+no_header", "a.tsv"), "tsv+no_header");
  EXPECT_EQ(name("csv+delimiter=tab+cr", "a"), "csv+cr+delimiter=tab");
  EXPECT_EQ(name("csv+delimiter=|", "a.csv.gz"), "csv+gzip+delimiter=|");
  EXPECT_EQ(name("csv+quotes", "a"), "invalid_argument");
  EXPECT_EQ(name("jsonl+no_header", "a"), "invalid_argument");
  EXPECT_EQ(name("csv+noheader", "a"), "invalid_argument");
}

/// Frames begin between records, though newlines and quotation marks stand everywhere inside of fields.
TEST(Table, LargeTablesAreReadInTheMiddle) {
  Random random(3);
  std::string table = "text,n\n", expected;
  for (int i = 0; table.size() < 10 << 20; ++i) {
    std::string text, written, json;
    for (std::uint64_t k = random.Below(300); k > 0; --k) {
      const char c = "abcdefgh,,\n\n\"\" "[random.Below(15)];
      text += c;
      written += c == '"' ? "\"\"" : std::string(1, c);
      json += c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
    }
    table += fmt::format("\"{}\",{}\n", written, i);
    expected += fmt::format("{{\"text\":\"{}\",\"n\":\"{}\"}}\n", json, i);
  }
  for (Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZstd}) {
    const std::string stored = compression == Compression::kNone   ? table
                               : compression == Compression::kGzip ? Gzip(table, 1)
                                                                   : Zstd(table, 1);
    StoredObject object(stored, {.layout = RecordLayout::kCsv, .compression = compression, .field = "text,n"});
    EXPECT_TRUE(ReadBack(*object.object.content) == expected);
    if (compression == Compression::kNone) {
      EXPECT_GE(FindAll(*object.object.content)->frames.size(), 2u);
    }
  }
}

TEST(Table, AnUnclosedQuoteNamesItsLine) {
  const DataFormat csv{.layout = RecordLayout::kCsv, .field = "a,b"};
  auto found = FindAll(*StoredObject("a,b\n1,\"x\ny\"\n2,\"z\n3,4\n", csv).object.content);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), Code::kCorrupt);
  EXPECT_THAT(found.error().ToString(), HasSubstr("s3://corpus/o: line 4: a quotation mark"));
  // The rest of a long object is not taken for one field.
  std::string table = "a,b\n1,\"open\n";
  while (table.size() < 24 << 20) table += "some more rows of the table,2\n";
  found = FindAll(*StoredObject(table, csv).object.content);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().ToString(), HasSubstr("line 2: a quotation mark in the row that begins there is not closed "
                                                  "within 16"));
}

class TableData : public testing::BertTest {};

TEST_F(TableData, UnevenRowsAreNamedByLine) {
  PutText(*store_, "a.csv", "sentence,label\nthe cat,1\n\"the\ndog\",0\n\nthe,red,dog\nred dog,1\nalone\ncat,1\n");
  DatasetOptions options{.sources = {{"s3://corpus/a.csv", 1.0}},
                         .sequence_length = 12,
                         .objective = Objective::kClassification,
                         .shuffle_window = 0};
  auto dataset = Open(options).value();
  EXPECT_EQ(dataset->samples_per_epoch(), 4u);
  EXPECT_EQ(dataset->broken_records(), 2u);
  EXPECT_EQ(Read(*dataset, 0, 1).words, "[CLS] the dog [SEP] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD]");
  options.max_broken = 1;
  auto refused = Open(options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(
      refused.error().ToString(),
      HasSubstr("a.csv line 6 (3 fields instead of 2) missing_field; s3://corpus/a.csv line 8 (1 fields instead "
                "of 2) missing_field"));
}

/// The tables of GLUE as they are published: CoLA has no header, MRPC has quotation marks in its sentences.
TEST_F(TableData, GluesLayoutsCanBeRead) {
  PutText(*store_, "CoLA/train.tsv", "gj04\t1\t\tthe cat sat\ngj04\t0\t*\tcat the\n");
  DatasetOptions options{.sources = {{.url = "s3://corpus/CoLA/train.tsv", .format = "tsv+no_header"}},
                         .sequence_length = 10,
                         .objective = Objective::kClassification,
                         .classification = {.text = "3", .label = "1"},
                         .shuffle_window = 0};
  auto cola = Open(options).value();
  ASSERT_EQ(cola->samples_per_epoch(), 2u);
  EXPECT_EQ(Read(*cola, 0, 1).words, "[CLS] cat the [SEP] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD]");
  EXPECT_EQ(Read(*cola, 0, 1).row_label, 0);

  PutText(
      *store_, "MRPC/train.tsv",
      "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t702876\t702977\t\"the cat\" sat\t\"the dog\r\n");
  options.sources = {{.url = "s3://corpus/MRPC/train.tsv"}};
  options.classification = {.text = "#1 String", .pair = "#2 String", .label = "Quality"};
  auto mrpc = Open(options).value();
  ASSERT_EQ(mrpc->samples_per_epoch(), 1u);
  EXPECT_EQ(Read(*mrpc, 0, 0).words, "[CLS] [UNK] the cat [UNK] [SEP] [UNK] the dog [SEP]");
  EXPECT_EQ(Read(*mrpc, 0, 0).row_label, 1);
}

}  // namespace
}  // namespace millrace::data
