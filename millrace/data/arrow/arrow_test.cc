// Tests the plug-in with objects that Arrow's writers make.
#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/writer.h>
#include <arrow/json/from_string.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <parquet/arrow/writer.h>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/data/records/arrow_plugin.h"
#include "millrace/data/records/record_template.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PutText;

std::shared_ptr<arrow::Array> FromJson(const std::shared_ptr<arrow::DataType>& type, const std::string& json) {
  return arrow::json::ArrayFromJSONString(type, json).ValueOrDie();
}

std::shared_ptr<arrow::Table> MakeTable(
    const std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>& columns) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

std::string Taken(arrow::io::BufferOutputStream& out) { return out.Finish().ValueOrDie()->ToString(); }

std::string ToIpc(const arrow::Table& table, bool file = false, std::int64_t batch_rows = 1000,
                  const arrow::ipc::IpcWriteOptions& options = arrow::ipc::IpcWriteOptions::Defaults()) {
  auto out = arrow::io::BufferOutputStream::Create().ValueOrDie();
  auto writer = (file ? arrow::ipc::MakeFileWriter(out, table.schema(), options)
                      : arrow::ipc::MakeStreamWriter(out, table.schema(), options))
                    .ValueOrDie();
  EXPECT_TRUE(writer->WriteTable(table, batch_rows).ok());
  EXPECT_TRUE(writer->Close().ok());
  return Taken(*out);
}

std::string ToParquet(const arrow::Table& table, std::int64_t group_rows,
                      arrow::Compression::type codec = arrow::Compression::SNAPPY) {
  auto out = arrow::io::BufferOutputStream::Create().ValueOrDie();
  auto properties = parquet::WriterProperties::Builder().compression(codec)->build();
  EXPECT_TRUE(parquet::arrow::WriteTable(table, arrow::default_memory_pool(), out, group_rows, properties).ok());
  return Taken(*out);
}

std::vector<std::string> Lines(const std::string& content) {
  std::vector<std::string> lines;
  for (std::string_view line : Split(content, '\n')) lines.emplace_back(line);
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

class ArrowTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Content> Open(const std::string& bytes, ArrowFormat format,
                                      std::vector<std::string> fields = {}) {
    PutText(*store_, "o", bytes);
    auto info = object::Head(*store_, "o").value().value();
    return OpenArrowContent({store_, info, "s3://b/o"}, format, std::move(fields)).value();
  }
  struct Read {
    std::string content;
    std::vector<Frame> frames;
  };
  static Result<Read> ReadAll(const Content& content) {
    Read read;
    MR_TRY(content.FindFrames(
        [&](Frame frame, std::optional<Buffer>) -> Status {
          read.frames.push_back(std::move(frame));
          return {};
        },
        {}));
    // In another order, because frames are independent.
    std::vector<std::string> pieces(read.frames.size());
    for (std::size_t i = read.frames.size(); i-- > 0;) {
      pieces[i] = AsText(MR_TRY(content.ReadFrame(read.frames[i], {})));
    }
    for (const std::string& piece : pieces) read.content += piece;
    return read;
  }
  /// Returns the rows of a table. Expects the same rows from every layout.
  std::vector<std::string> LinesOf(const arrow::Table& table, std::vector<std::string> fields = {}) {
    auto stream = ReadAll(*Open(ToIpc(table), ArrowFormat::kIpc, fields)).value();
    auto file = ReadAll(*Open(ToIpc(table, true, 2), ArrowFormat::kIpc, fields)).value();
    EXPECT_EQ(file.content, stream.content);
    return Lines(stream.content);
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
};

TEST_F(ArrowTest, EveryTypeIsWrittenAsJsonHasIt) {
  auto table = MakeTable({
      {"text", FromJson(arrow::utf8(), R"(["a\"\\\n\u0001é", "", null])")},
      {"large", FromJson(arrow::large_utf8(), R"(["x", "y", "z"])")},
      {"view", FromJson(arrow::utf8_view(), R"(["short", "longer than twelve bytes", null])")},
      {"yes", FromJson(arrow::boolean(), "[true, false, null]")},
      {"i8", FromJson(arrow::int8(), "[-5, 127, null]")},
      {"u64", FromJson(arrow::uint64(), "[18446744073709551615, 0, null]")},
      {"f", FromJson(arrow::float64(), "[0.1, NaN, -3]")},
      {"bytes", FromJson(arrow::binary(), R"(["ab", null, "c"])")},
      {"date", FromJson(arrow::date32(), "[0, 1, null]")},
      {"list", FromJson(arrow::list(arrow::int32()), "[[1, 2], [], null]")},
      {"chat", FromJson(arrow::list(arrow::struct_(
                            {arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8())})),
                        R"([[{"role": "user", "content": "hi"}, {"role": "bot", "content": null}], [], null])")},
      {"map", FromJson(arrow::map(arrow::utf8(), arrow::int32()), R"([[["k", 1], ["l", null]], [], null])")},
  });
  EXPECT_THAT(
      LinesOf(*table),
      ElementsAre(
          R"({"text":"a\"\\\n\u0001é","large":"x","view":"short","yes":true,"i8":-5,"u64":18446744073709551615,)"
          R"("f":0.1,"bytes":"ab","date":"1970-01-01","list":[1,2],"chat":[{"role":"user","content":"hi"},)"
          R"({"role":"bot"}],"map":{"k":1,"l":null}})",
          R"({"text":"","large":"y","view":"longer than twelve bytes","yes":false,"i8":127,"u64":0,"f":NaN,)"
          R"("date":"1970-01-02","list":[],"chat":[],"map":{}})",
          R"({"large":"z","f":-3.0,"bytes":"c"})"));
}

TEST_F(ArrowTest, HalfNumbersAndTimesAreWhatPythonPrints) {
  arrow::HalfFloatBuilder halves;
  ASSERT_TRUE(halves.AppendValues(std::vector<std::uint16_t>{0x7BFF, 0xBC00, 0x2E66}).ok());  // 65504, -1, about 0.1
  const auto moment = [](arrow::TimeUnit::type unit, const char* zone, const char* json) {
    return FromJson(arrow::timestamp(unit, zone), json);
  };
  auto table = MakeTable({
      {"half", halves.Finish().ValueOrDie()},
      {"plain", moment(arrow::TimeUnit::MICRO, "", "[1709210096000007, -1, 0]")},
      {"utc", moment(arrow::TimeUnit::MILLI, "UTC", "[1709210096500, 0, null]")},
      {"east", moment(arrow::TimeUnit::SECOND, "+05:30", "[1709210096, 0, null]")},
      {"fine", moment(arrow::TimeUnit::NANO, "", "[1, 1000, null]")},
      {"time", FromJson(arrow::time32(arrow::TimeUnit::SECOND), "[45296, 0, null]")},
      {"time64", FromJson(arrow::time64(arrow::TimeUnit::MICRO), "[45296000007, 0, null]")},
      {"span", FromJson(arrow::duration(arrow::TimeUnit::SECOND), "[93784, -1, 172800]")},
  });
  EXPECT_THAT(
      LinesOf(*table),
      ElementsAre(R"({"half":65504.0,"plain":"2024-02-29 12:34:56.000007","utc":"2024-02-29 12:34:56.500000+00:00",)"
                  R"("east":"2024-02-29 18:04:56+05:30","fine":"1970-01-01 00:00:00.000000001","time":"12:34:56",)"
                  R"("time64":"12:34:56.000007","span":"1 day, 2:03:04"})",
                  R"({"half":-1.0,"plain":"1969-12-31 23:59:59.999999","utc":"1970-01-01 00:00:00+00:00",)"
                  R"("east":"1970-01-01 05:30:00+05:30","fine":"1970-01-01 00:00:00.000001","time":"00:00:00",)"
                  R"("time64":"00:00:00","span":"-1 day, 23:59:59"})",
                  R"({"half":0.0999755859375,"plain":"1970-01-01 00:00:00","span":"2 days, 0:00:00"})"));
}

TEST_F(ArrowTest, OnlyTheFieldsAskedFor) {
  auto table = MakeTable({{"a", FromJson(arrow::utf8(), R"(["1", "2"])")},
                          {"b", FromJson(arrow::utf8(), R"(["3", "4"])")},
                          {"c", FromJson(arrow::utf8(), R"(["5", "6"])")}});
  EXPECT_THAT(LinesOf(*table, {"c", "a"}), ElementsAre(R"({"a":"1","c":"5"})", R"({"a":"2","c":"6"})"));
  auto parquet = Open(ToParquet(*table, 10), ArrowFormat::kParquet, {"b"});
  EXPECT_EQ(parquet->format(), "parquet(b)");
  EXPECT_EQ(ReadAll(*parquet).value().content, "{\"b\":\"3\"}\n{\"b\":\"4\"}\n");
  for (auto format : {ArrowFormat::kIpc, ArrowFormat::kParquet}) {
    auto read = ReadAll(*Open(format == ArrowFormat::kIpc ? ToIpc(*table) : ToParquet(*table, 10), format, {"text"}));
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(read.error().ToString(), HasSubstr("no column \"text\"; it has a, b, c"));
  }
}

TEST_F(ArrowTest, DictionariesAreWhatTheyStandFor) {
  auto type = arrow::dictionary(arrow::int8(), arrow::utf8());
  auto column = arrow::ChunkedArray::Make(
                    {
                        arrow::json::DictArrayFromJSONString(type, "[1, 0, null]", R"(["a", "b"])").ValueOrDie(),
                        arrow::json::DictArrayFromJSONString(type, "[0, 1]", R"(["c", "d"])").ValueOrDie(),
                    })
                    .ValueOrDie();
  auto table = arrow::Table::Make(arrow::schema({arrow::field("d", type)}), {column});
  // A stream replaces its dictionary between the batches.
  auto read = ReadAll(*Open(ToIpc(*table), ArrowFormat::kIpc)).value();
  EXPECT_EQ(read.content, "{\"d\":\"b\"}\n{\"d\":\"a\"}\n{}\n{\"d\":\"c\"}\n{\"d\":\"d\"}\n");
  EXPECT_EQ(read.frames.size(), 2u);
}

/// Returns rows with texts of about 300 bytes.
std::shared_ptr<arrow::Table> Corpus(int rows, std::string* lines = nullptr) {
  Random random(5);
  arrow::StringBuilder texts, others;
  for (int i = 0; i < rows; ++i) {
    std::string text = fmt::format("row {} ", i);
    for (std::uint64_t n = random.Below(600); n > 0; --n) text += static_cast<char>('a' + random.Below(26));
    EXPECT_TRUE(texts.Append(text).ok());
    EXPECT_TRUE(others.Append(std::string(500, 'x') + text).ok());
    if (lines) *lines += fmt::format("{{\"text\":\"{}\"}}\n", text);
  }
  return MakeTable({{"other", others.Finish().ValueOrDie()}, {"text", texts.Finish().ValueOrDie()}});
}

TEST_F(ArrowTest, FramesArePiecesOfAReasonableSize) {
  std::string lines;
  auto table = Corpus(6000, &lines);
  for (auto codec : {arrow::Compression::UNCOMPRESSED, arrow::Compression::LZ4_FRAME, arrow::Compression::ZSTD}) {
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    if (codec != arrow::Compression::UNCOMPRESSED) options.codec = arrow::util::Codec::Create(codec).ValueOrDie();
    for (bool file : {false, true}) {
      auto read = ReadAll(*Open(ToIpc(*table, file, 100, options), ArrowFormat::kIpc, {"text"})).value();
      EXPECT_EQ(read.content, lines);
      EXPECT_GE(read.frames.size(), 4u);
      for (std::size_t i = 1; i < read.frames.size(); ++i) {
        EXPECT_EQ(read.frames[i].offset, read.frames[i - 1].offset + read.frames[i - 1].bytes);
        EXPECT_LE(read.frames[i].bytes, 700 * kKiB);
      }
    }
  }
  for (auto codec : {arrow::Compression::UNCOMPRESSED, arrow::Compression::SNAPPY, arrow::Compression::GZIP,
                     arrow::Compression::ZSTD, arrow::Compression::LZ4}) {
    for (std::int64_t rows : {100, 2500, 10'000}) {
      auto read = ReadAll(*Open(ToParquet(*table, rows, codec), ArrowFormat::kParquet, {"text"})).value();
      EXPECT_EQ(read.content, lines);
      EXPECT_EQ(read.frames.size(), rows == 10'000 ? 1 : rows == 100 ? 4 : 3) << rows;
    }
  }
}

TEST_F(ArrowTest, OnlyTheWantedColumnsOfParquetAreRead) {
  std::string lines;
  auto table = Corpus(10'000, &lines);
  std::string parquet = ToParquet(*table, 2500, arrow::Compression::UNCOMPRESSED);
  auto content = Open(parquet, ArrowFormat::kParquet, {"text"});
  auto read = ReadAll(*content).value();
  EXPECT_EQ(read.content, lines);
  std::uint64_t bytes = 0;
  for (const Frame& frame : read.frames) bytes += frame.bytes;
  EXPECT_LT(bytes, parquet.size() / 2) << "the other column is more than half";
}

/// As ToParquet, with one row group of small pages.
std::string ToPages(const arrow::Table& table, parquet::ParquetDataPageVersion version, bool index, bool dictionary) {
  auto out = arrow::io::BufferOutputStream::Create().ValueOrDie();
  parquet::WriterProperties::Builder builder;
  builder.compression(arrow::Compression::LZ4)->data_page_version(version)->data_pagesize(100 * kKiB);
  builder.dictionary_pagesize_limit(64 * kKiB);
  if (index) builder.enable_write_page_index();
  if (!dictionary) builder.disable_dictionary();
  EXPECT_TRUE(parquet::arrow::WriteTable(table, arrow::default_memory_pool(), out, 1 << 30, builder.build()).ok());
  return Taken(*out);
}

TEST_F(ArrowTest, ALargeRowGroupIsReadByItsPages) {
  constexpr int kRows = 13'000;
  Random random(7);
  arrow::StringBuilder texts, tags;
  arrow::Int32Builder numbers;
  std::string lines;
  for (int i = 0; i < kRows; ++i) {
    std::string text = fmt::format("row {} ", i);
    // Rows of all sizes, so that pages differ in rows, and pages of two columns begin at different rows.
    for (std::uint64_t n = random.Below(random.Below(50) == 0 ? 40'000 : 900); n > 0; --n) {
      text += static_cast<char>('a' + random.Below(26));
    }
    const bool tagged = random.Below(3) > 0;
    std::string tag = fmt::format("tag {}", random.Below(10));
    ASSERT_TRUE(texts.Append(text).ok() && numbers.Append(i).ok());
    ASSERT_TRUE((tagged ? tags.Append(tag) : tags.AppendNull()).ok());
    lines += fmt::format("{{\"number\":{}{},\"text\":\"{}\"}}\n", i, tagged ? fmt::format(",\"tag\":\"{}\"", tag) : "",
                         text);
  }
  auto table = MakeTable({{"number", numbers.Finish().ValueOrDie()},
                          {"tag", tags.Finish().ValueOrDie()},
                          {"text", texts.Finish().ValueOrDie()}});
  for (auto version : {parquet::ParquetDataPageVersion::V1, parquet::ParquetDataPageVersion::V2}) {
    for (bool index : {false, true}) {
      std::string bytes = ToPages(*table, version, index, index == (version == parquet::ParquetDataPageVersion::V1));
      auto read = ReadAll(*Open(bytes, ArrowFormat::kParquet));
      ASSERT_TRUE(read) << read.error().ToString();
      EXPECT_TRUE(read->content == lines);
      EXPECT_GE(read->frames.size(), 3u);
      for (const Frame& frame : read->frames) EXPECT_LT(frame.bytes, 6 * kMiB);
      auto text = ReadAll(*Open(bytes, ArrowFormat::kParquet, {"text"})).value();
      EXPECT_EQ(Lines(text.content).size(), kRows);
    }
  }
}

TEST_F(ArrowTest, NestedColumnsOfALargeRowGroupToo) {
  Random random(13);
  auto word = [&](std::uint64_t longest) {
    std::string text;
    for (std::uint64_t n = random.Below(longest); n > 0; --n) text += static_cast<char>('a' + random.Below(26));
    return text;
  };
  auto chat_type = arrow::list(arrow::struct_(
      {arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8()),
       arrow::field("parts", arrow::list(arrow::struct_(
                                 {arrow::field("a", arrow::int32()),
                                  arrow::field("b", arrow::struct_({arrow::field("c", arrow::utf8())}))})))}));
  auto notes_type = arrow::map(arrow::utf8(), arrow::list(arrow::struct_({arrow::field("n", arrow::int32())})));
  std::string chats = "[", tags = "[", notes = "[";
  for (int row = 0; row < 5000; ++row) {
    if (row > 0) chats += ",", tags += ",", notes += ",";
    tags += fmt::format("[\"{}\"]", random.Below(5));
    notes += random.Below(9) == 0 ? "null" : "[";
    if (notes.back() == '[') {
      for (std::uint64_t i = 0, entries = random.Below(4); i < entries; ++i) {
        notes += fmt::format(R"({}["{} {}", [{{"n": {}}}]])", i > 0 ? "," : "", word(40), i, row);
      }
      notes += "]";
    }
    if (random.Below(20) == 0) {
      chats += "null";
      continue;
    }
    chats += "[";
    for (std::uint64_t turn = 0, turns = random.Below(random.Below(100) == 0 ? 200 : 8); turn < turns; ++turn) {
      if (turn > 0) chats += ",";
      chats += fmt::format(R"({{"role": "{}", "content": {}, "parts": [{{"a": {}, "b": {{"c": "{}"}}}}]}})",
                           turn % 2 == 0 ? "user" : "assistant",
                           random.Below(9) == 0 ? "null" : fmt::format("\"{}\"", word(1500)), turn, word(30));
    }
    chats += "]";
  }
  auto table = MakeTable({{"chat", FromJson(chat_type, chats + "]")},
                          {"notes", FromJson(notes_type, notes + "]")},
                          {"tags", FromJson(arrow::list(arrow::utf8()), tags + "]")}});
  const std::string lines = ReadAll(*Open(ToIpc(*table), ArrowFormat::kIpc)).value().content;
  for (auto version : {parquet::ParquetDataPageVersion::V1, parquet::ParquetDataPageVersion::V2}) {
    for (bool index : {false, true}) {
      if (index && version == parquet::ParquetDataPageVersion::V2) continue;
      auto read = ReadAll(*Open(ToPages(*table, version, index, true), ArrowFormat::kParquet));
      ASSERT_TRUE(read) << read.error().ToString();
      EXPECT_TRUE(read->content == lines);
      EXPECT_GE(read->frames.size(), 2u);
    }
  }
}

TEST_F(ArrowTest, ALargeRecordBatchIsReadInSlices) {
  constexpr int kRows = 9000;
  Random random(17);
  const auto pair = arrow::struct_({arrow::field("a", arrow::utf8()), arrow::field("b", arrow::boolean())});
  std::string lists = "[", maps = "[", fixed = "[", kinds = "[", flags = "[";
  arrow::StringBuilder texts;
  arrow::LargeStringBuilder others;
  for (int row = 0; row < kRows; ++row) {
    const char* comma = row > 0 ? "," : "";
    auto maybe = [&](const std::string& value) { return comma + (random.Below(10) == 0 ? "null" : value); };
    lists += maybe(fmt::format(R"([{{"a": "x{}", "b": {}}}, {{"a": null, "b": true}}])", row, row % 3 == 0));
    maps += maybe(fmt::format(R"([["k", {}], ["l", null]])", row));
    fixed += maybe(fmt::format("[{}, {}]", row, row + 1));
    kinds += maybe(fmt::format("\"kind {}\"", row % 7));
    flags += maybe(row % 2 == 0 ? "true" : "false");
    ASSERT_TRUE(texts.Append(std::string(random.Below(2000), 'a') + std::to_string(row)).ok());
    ASSERT_TRUE((random.Below(5) == 0 ? others.AppendNull() : others.Append(std::string(random.Below(99), 'o'))).ok());
  }
  auto table = MakeTable({{"fixed", FromJson(arrow::fixed_size_list(arrow::int16(), 2), fixed + "]")},
                          {"flag", FromJson(arrow::boolean(), flags + "]")},
                          {"kind", FromJson(arrow::dictionary(arrow::int8(), arrow::utf8()), kinds + "]")},
                          {"list", FromJson(arrow::list(pair), lists + "]")},
                          {"map", FromJson(arrow::map(arrow::utf8(), arrow::int64()), maps + "]")},
                          {"other", others.Finish().ValueOrDie()},
                          {"text", texts.Finish().ValueOrDie()}});
  for (bool file : {false, true}) {
    for (const std::vector<std::string>& fields : {std::vector<std::string>{}, {"kind", "text"}}) {
      const std::string lines = ReadAll(*Open(ToIpc(*table, file, 500), ArrowFormat::kIpc, fields)).value().content;
      auto read = ReadAll(*Open(ToIpc(*table, file, kRows), ArrowFormat::kIpc, fields));
      ASSERT_TRUE(read) << read.error().ToString();
      EXPECT_TRUE(read->content == lines);
      EXPECT_GE(read->frames.size(), 3u);
      for (const Frame& frame : read->frames) EXPECT_LT(frame.bytes, 5 * kMiB);
    }
  }
  // Damaged batches and damaged indexes.
  const std::string bytes = ToIpc(*table, false, kRows);
  const auto frames = ReadAll(*Open(bytes, ArrowFormat::kIpc)).value().frames;
  for (int round = 0; round < 60; ++round) {
    std::string damaged = bytes;
    Frame frame = frames[random.Below(frames.size())];
    if (round % 3 == 0) {
      frame.state[random.Below(frame.state.size())] ^= static_cast<char>(1u << random.Below(8));
    } else {
      const std::uint64_t reach = round % 3 == 1 ? 2000 : 400 * kKiB;
      for (int i = 0; i < 5; ++i)
        damaged[frame.offset + random.Below(reach)] ^= static_cast<char>(1u << random.Below(8));
    }
    auto read = Open(damaged, ArrowFormat::kIpc)->ReadFrame(frame, {});
    EXPECT_TRUE(read || read.error().code() != Code::kInternal) << read.error().ToString();
  }
}

arrow::ipc::IpcWriteOptions CompressedBy(arrow::Compression::type codec) {
  auto options = arrow::ipc::IpcWriteOptions::Defaults();
  if (codec != arrow::Compression::UNCOMPRESSED) options.codec = arrow::util::Codec::Create(codec).ValueOrDie();
  return options;
}

constexpr arrow::Compression::type kIpcCodecs[] = {arrow::Compression::UNCOMPRESSED, arrow::Compression::LZ4_FRAME,
                                                   arrow::Compression::ZSTD};

/// Texts of all lengths, as strings and as views, beside values that JSON cannot hold.
std::shared_ptr<arrow::Table> ViewsAndUnions(int rows) {
  Random random(23);
  arrow::StringBuilder texts;
  arrow::StringViewBuilder views;
  std::string unions = "[";
  for (int row = 0; row < rows; ++row) {
    std::string text = fmt::format("{} ", row);
    for (std::uint64_t n = random.Below(random.Below(4) == 0 ? 9 : 3000); n > 0; --n) {
      text += static_cast<char>('a' + random.Below(26));
    }
    EXPECT_TRUE(texts.Append(text).ok());
    EXPECT_TRUE((random.Below(9) == 0 ? views.AppendNull() : views.Append(std::string_view(text).substr(1))).ok());
    unions += fmt::format("{}{}", row > 0 ? "," : "", row % 2 == 0 ? "[5, 7]" : "[9, \"x\"]");
  }
  const auto either = arrow::dense_union({arrow::field("a", arrow::int32()), arrow::field("b", arrow::utf8())}, {5, 9});
  auto runs = arrow::RunEndEncodedArray::Make(rows, FromJson(arrow::int32(), fmt::format("[{}]", rows)),
                                              FromJson(arrow::utf8(), "[\"r\"]"))
                  .ValueOrDie();
  return MakeTable({{"union", FromJson(either, unions + "]")},
                    {"text", texts.Finish().ValueOrDie()},
                    {"runs", runs},
                    {"view", views.Finish().ValueOrDie()}});
}

TEST_F(ArrowTest, ColumnsThatAreNotAskedForCannotBeInTheWay) {
  constexpr int kRows = 16'000;
  auto table = ViewsAndUnions(kRows);
  const std::vector<std::string> fields = {"text", "view"};
  const std::string lines = ReadAll(*Open(ToIpc(*table, false, 500), ArrowFormat::kIpc, fields)).value().content;
  ASSERT_EQ(Lines(lines).size(), kRows);
  for (auto codec : kIpcCodecs) {
    for (std::int64_t rows : {700, kRows}) {
      if (rows == 700 && codec != arrow::Compression::LZ4_FRAME)
        continue;  // small ones are read as a whole, whatever the codec
      auto read = ReadAll(*Open(ToIpc(*table, rows == 700, rows, CompressedBy(codec)), ArrowFormat::kIpc, fields));
      ASSERT_TRUE(read) << read.error().ToString();
      EXPECT_TRUE(read->content == lines) << static_cast<int>(codec) << " " << rows;
      EXPECT_GE(read->frames.size(), 2u) << "a batch of 36 MB is read in parts";
    }
  }
  // Such columns are read whole if they are wanted.
  auto all = ReadAll(*Open(ToIpc(*ViewsAndUnions(200)), ArrowFormat::kIpc));
  ASSERT_TRUE(all) << all.error().ToString();
  EXPECT_EQ(all->frames.size(), 1u);
  EXPECT_EQ(Lines(all->content).size(), 200u);
}

/// Returns the offsets of the 8-byte words in the metadata of the only record batch.
std::vector<std::size_t> WordsOfBatch(const std::string& stream) {
  const std::byte* bytes = AsBytes(stream).data();
  const std::size_t schema = 8 + LoadLittle<std::uint32_t>(bytes + 4);
  const std::size_t end = schema + 8 + LoadLittle<std::uint32_t>(bytes + schema + 4);
  std::vector<std::size_t> words;
  for (std::size_t at = schema + 8; at + 8 <= end; at += 8) words.push_back(at);
  return words;
}

TEST_F(ArrowTest, ABatchThatLiesOfItsRowsAndPlacesIsAnErrorThatNamesTheFile) {
  const std::int64_t kLies[] = {-1, 0, 1, 1 << 20, std::int64_t{1} << 40, std::int64_t{1} << 62, INT64_MAX, INT64_MIN};
  auto lists = FromJson(arrow::list(arrow::int32()), "[[1], [2, 3], null, [4], []]");
  auto small =
      MakeTable({{"text", FromJson(arrow::utf8(), R"(["one", "two", null, "four", "five"])")},
                 {"list", lists},
                 {"none", FromJson(arrow::null(), "[null, null, null, null, null]")},
                 {"view", FromJson(arrow::utf8_view(), R"(["a", null, "more than twelve bytes", "b", "c"])")}});
  auto large = ViewsAndUnions(4000)->SelectColumns({1, 3}).ValueOrDie();  // 9 MB: read in slices, if not compressed
  for (const auto& [table, rows] : {std::pair{small, 5}, {large, 4000}}) {
    for (auto codec : kIpcCodecs) {
      if (rows > 5 && codec == arrow::Compression::LZ4_FRAME) continue;  // read in slices as the other one is
      const std::string original = ToIpc(*table, false, rows, CompressedBy(codec));
      int errors = 0, row_counts = 0;
      for (std::size_t at : WordsOfBatch(original)) {
        const auto truth = LoadLittle<std::int64_t>(AsBytes(original).data() + at);
        for (std::int64_t lie : kLies) {
          if (lie == truth) continue;
          // Each try reads the whole batch, so a large batch gets one try for each of the other words.
          if (rows > 5 && truth != rows && (lie != (1 << 20) || codec != arrow::Compression::UNCOMPRESSED)) continue;
          std::string bytes = original;
          StoreLittle(std::as_writable_bytes(std::span(bytes)).data() + at, lie);
          auto read = ReadAll(*Open(bytes, ArrowFormat::kIpc));
          if (!read) {
            ++errors;
            EXPECT_THAT(read.error().ToString(), HasSubstr("s3://b/o"));
            EXPECT_THAT(read.error().code(), ::testing::AnyOf(Code::kCorrupt, Code::kUnsupported, Code::kNotFound));
          } else if (truth == rows && lie > rows) {
            ADD_FAILURE() << "word " << at << " says " << lie << " rows";
          }
          row_counts += truth == rows;
        }
      }
      EXPECT_GE(row_counts, 3 * 7) << "the batch's rows and those of its columns";
      EXPECT_GE(errors, row_counts);
    }
  }
}

TEST_F(ArrowTest, OffsetsThatOverflowAreDamage) {
  auto table = ViewsAndUnions(9000)->SelectColumns({1}).ValueOrDie();  // 10 MB: read in slices
  const std::string original = ToIpc(*table, false, 9000);
  // Finds the offsets of the texts by the length of the first text.
  const auto& texts = static_cast<const arrow::StringArray&>(*table->column(0)->chunk(0));
  std::string pattern(8, '\0');
  StoreLittle(std::as_writable_bytes(std::span(pattern)).data() + 4, texts.value_offset(1));
  const std::size_t offsets = original.find(pattern);
  ASSERT_NE(offsets, original.npos);
  for (std::int32_t lie : {-1, INT32_MIN, INT32_MAX, 0x7FFF0000}) {
    for (std::size_t row : {0, 1, 4000, 9000}) {
      std::string bytes = original;
      StoreLittle(std::as_writable_bytes(std::span(bytes)).data() + offsets + 4 * row, lie);
      auto read = ReadAll(*Open(bytes, ArrowFormat::kIpc));
      ASSERT_FALSE(read) << row << " " << lie;
      EXPECT_EQ(read.error().code(), Code::kCorrupt);
      EXPECT_THAT(read.error().ToString(), HasSubstr("s3://b/o: the record batch at byte"));
    }
  }
}

/// Damage to a row group that is read by pages yields an error or other text.
TEST_F(ArrowTest, DamagedPagesAreAnErrorOrOtherText) {
  Random random(11);
  std::string bytes = ToPages(*Corpus(22'000), parquet::ParquetDataPageVersion::V1, false, false);
  auto content = Open(bytes, ArrowFormat::kParquet, {"text", "other"});
  auto frames = ReadAll(*content).value().frames;
  ASSERT_GE(frames.size(), 4u);
  for (int round = 0; round < 40; ++round) {
    Frame frame = frames[1];
    if (round % 10 == 0) frame.state.resize(random.Below(frame.state.size()));
    if (!frame.state.empty()) frame.state[random.Below(frame.state.size())] ^= static_cast<char>(1u << random.Below(8));
    auto read = content->ReadFrame(frame, {});
    EXPECT_TRUE(read || read.error().code() == Code::kCorrupt) << read.error().ToString();
  }
  for (int round = 0; round < 12; ++round) {
    std::string damaged = bytes;
    for (int flips = 0; flips < 3; ++flips) {
      damaged[frames[1].offset + random.Below(200 * kKiB)] ^= static_cast<char>(1u << random.Below(8));
    }
    auto read = Open(damaged, ArrowFormat::kParquet, {"text", "other"})->ReadFrame(frames[1], {});
    EXPECT_TRUE(read || read.error().code() != Code::kInternal) << read.error().ToString();
  }
}

TEST_F(ArrowTest, ABadRowIsItsOwnAffair) {
  arrow::StringBuilder builder;
  for (const char* text : {"good", "b\xff\xfe", "fine"}) ASSERT_TRUE(builder.Append(text).ok());
  auto table = MakeTable({{"text", builder.Finish().ValueOrDie()}});
  EXPECT_THAT(LinesOf(*table), ElementsAre(R"({"text":"good"})", "{\"text\":\"b\xff\xfe\"}", R"({"text":"fine"})"));
}

/// A column of lists that repeat one word. A few bytes expand to `words` times 64 KiB in each row.
std::shared_ptr<arrow::Table> MakeBomb(std::int64_t rows, std::int64_t words) {
  auto word = FromJson(arrow::utf8(), fmt::format(R"(["{}"])", std::string(64 << 10, 'w')));
  arrow::Int8Builder indices;
  EXPECT_TRUE(indices.AppendValues(std::vector<std::int8_t>(static_cast<std::size_t>(rows * words), 0)).ok());
  auto dictionary = arrow::DictionaryArray::FromArrays(arrow::dictionary(arrow::int8(), arrow::utf8()),
                                                       indices.Finish().ValueOrDie(), word)
                        .ValueOrDie();
  arrow::Int32Builder offsets;
  for (std::int64_t row = 0; row <= rows; ++row)
    EXPECT_TRUE(offsets.Append(static_cast<std::int32_t>(row * words)).ok());
  auto lists = arrow::ListArray::FromArrays(*offsets.Finish().ValueOrDie(), *dictionary).ValueOrDie();
  return MakeTable(
      {{"text",
        FromJson(
            arrow::utf8(),
            fmt::format("[{}]", fmt::join(std::vector<std::string>(static_cast<std::size_t>(rows), R"("x")"), ",")))},
       {"bomb", lists}});
}

TEST_F(ArrowTest, ARowThatStandsForTerabytesIsARecordThatIsTooLong) {
  auto options = arrow::ipc::IpcWriteOptions::Defaults();
  options.codec = arrow::util::Codec::Create(arrow::Compression::ZSTD).ValueOrDie();
  const std::string bytes = ToIpc(*MakeBomb(1, 16 << 20), false, 1000, options);  // 1 TiB
  ASSERT_LT(bytes.size(), 16u << 10);
  const auto read = ReadAll(*Open(bytes, ArrowFormat::kIpc)).value();
  EXPECT_EQ(read.content.size(), kMaxRecordBytes + 2) << "cut behind what a record may have, and ended";
  EXPECT_THAT(Lines(ReadAll(*Open(bytes, ArrowFormat::kIpc, {"text"})).value().content),
              ElementsAre(R"({"text":"x"})"));
}

TEST_F(ArrowTest, ManySuchRowsAreAnErrorThatNamesTheRowTheLimitAndTheCure) {
  const auto table = MakeBomb(18, 1000);
  for (ArrowFormat format : {ArrowFormat::kIpc, ArrowFormat::kParquet}) {
    const bool is_parquet = format == ArrowFormat::kParquet;
    const auto read = ReadAll(*Open(is_parquet ? ToParquet(*table, 1000) : ToIpc(*table), format));
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), Code::kUnsupported);
    EXPECT_THAT(read.error().ToString(), AllOf(HasSubstr("s3://b/o"), HasSubstr("write smaller"))) << is_parquet;
    if (is_parquet) continue;  // there Arrow itself would need more memory than it may have
    EXPECT_THAT(read.error().ToString(), AllOf(HasSubstr("its record 16 "), HasSubstr("268.4 MB")));
  }
}

TEST_F(ArrowTest, WhatUnionsRunsAndViewsStandFor) {
  auto runs =
      arrow::RunEndEncodedArray::Make(3, FromJson(arrow::int32(), "[2, 3]"), FromJson(arrow::utf8(), R"(["a", "b"])"))
          .ValueOrDie();
  auto either =
      arrow::DenseUnionArray::Make(*FromJson(arrow::int8(), "[0, 1, 0]"), *FromJson(arrow::int32(), "[0, 0, 1]"),
                                   {FromJson(arrow::int32(), "[5, 6]"), FromJson(arrow::utf8(), R"(["x"])")})
          .ValueOrDie();
  auto table = MakeTable(
      {{"runs", runs}, {"either", either}, {"views", FromJson(arrow::list_view(arrow::int32()), "[[1], [], [2, 3]]")}});
  EXPECT_THAT(Lines(ReadAll(*Open(ToIpc(*table), ArrowFormat::kIpc)).value().content),
              ElementsAre(R"({"runs":"a","either":5,"views":[1]})", R"({"runs":"a","either":"x","views":[]})",
                          R"({"runs":"b","either":6,"views":[2,3]})"));
}

TEST_F(ArrowTest, EncryptedParquetIsCalledSo) {
  std::string bytes = ToParquet(*MakeTable({{"text", FromJson(arrow::utf8(), R"(["x"])")}}), 10);
  bytes.replace(bytes.size() - 4, 4, "PARE");
  const auto read = ReadAll(*Open(bytes, ArrowFormat::kParquet));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code(), Code::kUnsupported);
  EXPECT_THAT(read.error().ToString(), AllOf(HasSubstr("s3://b/o"), HasSubstr("encrypted"), HasSubstr("decryption")));
}

TEST_F(ArrowTest, SaysWhatIsWrong) {
  auto table = Corpus(100);
  std::string ipc = ToIpc(*table);
  EXPECT_THAT(ReadAll(*Open("hello, this is text", ArrowFormat::kIpc)).error().ToString(), HasSubstr("s3://b/o"));
  EXPECT_THAT(ReadAll(*Open(ipc.substr(0, ipc.size() / 2), ArrowFormat::kIpc)).error().ToString(),
              HasSubstr("is cut off"));
  std::string parquet = ToParquet(*table, 10);
  EXPECT_EQ(ReadAll(*Open(parquet.substr(0, parquet.size() - 3), ArrowFormat::kParquet)).error().code(),
            Code::kCorrupt);
  EXPECT_EQ(ReadAll(*Open("x", ArrowFormat::kParquet)).error().code(), Code::kCorrupt);

  auto content = Open(parquet, ArrowFormat::kParquet);
  auto frames = ReadAll(*content).value().frames;
  PutText(*store_, "o", "another object");
  EXPECT_EQ(content->ReadFrame(frames[0], {}).error().code(), Code::kStale);
  frames[0].state = "nonsense";
  EXPECT_EQ(content->ReadFrame(frames[0], {}).error().code(), Code::kCorrupt);
}

/// Damage yields only errors or other records.
TEST_F(ArrowTest, DamageIsAnErrorOrOtherText) {
  auto table = MakeTable({
      {"text", FromJson(arrow::utf8(), R"(["one", "two", null, "four", "five"])")},
      {"tag", FromJson(arrow::utf8_view(), R"(["a", "b", "c", "a view beyond its twelve bytes", "b"])")},
      {"list", FromJson(arrow::list(arrow::struct_({arrow::field("s", arrow::large_utf8())})),
                        R"([[{"s": "x"}], [], null, [{"s": "y"}, {"s": "z"}], []])")},
  });
  auto plain = MakeTable({{"text", table->column(0)->chunk(0)}, {"list", table->column(2)->chunk(0)}});
  auto zstd = arrow::ipc::IpcWriteOptions::Defaults();
  zstd.codec = arrow::util::Codec::Create(arrow::Compression::ZSTD).ValueOrDie();
  const std::pair<std::string, ArrowFormat> originals[] = {
      {ToIpc(*table, false, 3), ArrowFormat::kIpc},
      {ToIpc(*table, true, 3, zstd), ArrowFormat::kIpc},
      {ToParquet(*plain, 3), ArrowFormat::kParquet},
      {ToParquet(*plain, 3, arrow::Compression::UNCOMPRESSED), ArrowFormat::kParquet},
  };
  Random random(17);
  int survived = 0;
  for (int round = 0; round < 1200; ++round) {
    auto [bytes, format] = originals[round % 4];
    if (random.Below(10) == 0) bytes.resize(random.Below(bytes.size()));
    for (std::uint64_t flips = random.Below(4); flips > 0 && !bytes.empty(); --flips) {
      bytes[random.Below(bytes.size())] ^= static_cast<char>(1u << random.Below(8));
    }
    survived += ReadAll(*Open(bytes, format)).has_value();
  }
  EXPECT_GT(survived, 100);
}

}  // namespace
}  // namespace millrace::data
