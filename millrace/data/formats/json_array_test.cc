#include "millrace/data/formats/json_array.h"

#include <gmock/gmock.h>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/data/records/record_template.h"
#include "millrace/data/sources/sources.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using ::testing::HasSubstr;
using testing::PutText;
using testing::ReadBack;
using testing::StoredObject;

std::string RandomText(Random& random) {
  constexpr std::string_view kPieces[] = {"a",  "[",  "]",  "{", "}", ",",  ":", "\"",
                                          "\\", "\n", "\t", " ", "é", "水", "🌊"};
  std::string text;
  for (std::uint64_t left = random.Below(12); left > 0; --left) text += kPieces[random.Below(std::size(kPieces))];
  return text;
}

Json RandomValue(Random& random, int depth) {
  switch (random.Below(depth > 0 ? 8 : 6)) {
    case 0:
      return random.Below(1000);
    case 1:
      return random.Below(2) == 0;
    case 2:
      return nullptr;
    case 6: {
      Json array = Json::array();
      for (std::uint64_t left = random.Below(4); left > 0; --left) array.push_back(RandomValue(random, depth - 1));
      return array;
    }
    case 7: {
      Json object = Json::object();
      for (std::uint64_t left = random.Below(4); left > 0; --left) {
        object[RandomText(random)] = RandomValue(random, depth - 1);
      }
      return object;
    }
    default:
      return RandomText(random);
  }
}

Json RandomObject(Random& random) {
  Json object = Json::object();
  for (std::uint64_t left = random.Below(4); left > 0; --left) object[RandomText(random)] = RandomValue(random, 3);
  return object;
}

/// Prints JSON with random white space and random escapes.
class Printer {
 public:
  explicit Printer(Random& random) : random_(random), loose_(random.Below(3) > 0), ascii_(random.Below(2) == 0) {}

  std::string Print(const Json& value) {
    std::string text = Blank();
    if (value.is_object()) {
      text += "{" + Blank();
      std::string_view comma = "";
      for (const auto& [name, member] : value.items()) {
        text += fmt::format("{}{}{}{}:{}", std::exchange(comma, ","), Blank(), Dump(name), Blank(), Print(member));
      }
      return text + "}" + Blank();
    }
    if (value.is_array()) {
      text += "[";
      for (std::size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "" : ",") + Print(value[i]);
      return text + Blank() + "]" + Blank();
    }
    return text + Dump(value) + Blank();
  }
  std::string Blank() {
    std::string blank;
    if (!loose_) return blank;
    for (std::uint64_t left = random_.Below(4); left > 0; --left) blank += " \n\r\t"[random_.Below(4)];
    return blank;
  }

 private:
  std::string Dump(const Json& value) const { return value.dump(-1, ' ', ascii_); }

  Random& random_;
  const bool loose_, ascii_;
};

/// Returns the parsed lines.
std::vector<Json> Records(std::string_view lines) {
  std::vector<Json> records;
  for (std::string_view line : Split(lines, '\n')) {
    if (!IsBlank(line)) records.push_back(ParseJson(line, "a line").value());
  }
  return records;
}

/// Returns the lines of data that arrive in small steps and are cut at random positions.
Result<std::string> CutAnywhere(Random& random, const Syntax& syntax, std::string_view data) {
  std::string lines;
  auto splitter = syntax.NewSplitter();
  std::size_t begin = 0, known = 0;
  while (known < data.size()) {
    known = std::min(data.size(), known + 1 + random.Below(random.Below(3) == 0 ? 3 : 80));
    while (begin < known) {
      const bool at_end = known == data.size();
      auto end = MR_TRY(splitter->Find(data.substr(begin, known - begin), 1 + begin % 7, at_end));
      if (!end) break;
      lines += AsText(MR_TRY(syntax.ToLines(ToBuffer(data.substr(begin, *end)), begin)));
      begin += *end;
      splitter->Restart(begin);
    }
  }
  return lines;
}

TEST(JsonArray, ElementsComeBackHoweverTheyArePrintedAndCut) {
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    std::vector<Json> records(random.Below(8));
    for (Json& record : records) record = RandomObject(random);
    Printer printer(random);
    Json whole = records;
    if (records.empty()) whole = Json::array();
    std::string data = printer.Print(whole);
    std::string field;
    if (i % 2 == 1) {
      field = "data";
      data = printer.Blank() + "{" + printer.Blank() + "\"" + (i % 4 == 1 ? "datum" : "x") +
             "\":" + printer.Print(RandomValue(random, 3)) + ", \"data\"" + printer.Blank() + ":" + data +
             ",\"data\":" + printer.Print(RandomValue(random, 2)) + "}";
    }
    if (i % 5 == 0) data = "\xEF\xBB\xBF" + data;
    auto lines = CutAnywhere(random, *MakeJsonArraySyntax(field), data);
    ASSERT_TRUE(lines.has_value()) << lines.error().ToString() << "\n" << data;
    EXPECT_EQ(lines->size(), data.size()) << "records are where they were";
    EXPECT_EQ(Records(*lines), records) << data;
  }
}

TEST(JsonArray, FramesOfAnObjectComeBack) {
  Random random(2);
  std::string data = "[\n", lines;
  while (data.size() < 13 << 20) {
    std::string record = testing::RandomRecord(random, 1 + random.Below(random.Below(100) == 0 ? 2 << 20 : 9000));
    lines += record;
    record.pop_back();
    data += (data.size() > 2 ? ",\n  " : "  ") + record;
  }
  data += "\n]\n";
  for (Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZstd}) {
    std::string packed = compression == Compression::kGzip   ? testing::Gzip(data, 1)
                         : compression == Compression::kZstd ? testing::Zstd(data, 1)
                                                             : data;
    StoredObject stored(packed, {RecordLayout::kJson, compression});
    EXPECT_GE(FindAll(*stored.object.content).value().frames.size(), compression == Compression::kZstd ? 1u : 3u);
    std::string content = ReadBack(*stored.object.content), records;
    EXPECT_EQ(content.size(), data.size());
    for (std::string_view line : Split(content, '\n')) {
      if (!IsBlank(line)) records += fmt::format("{}\n", Trim(line));
    }
    EXPECT_TRUE(records == lines);
  }
}

TEST(JsonArray, WhatIsNoObjectIsABrokenRecordWhereItStands) {
  std::string content =
      ReadBack(*StoredObject("[{\"text\":\"a\"}, 7, {\"text\":tru}, {\"text\":\"b\nc\"} {},\n\"\\\"]\", [1,[2]], null]",
                             {RecordLayout::kJson})
                    .object.content);
  EXPECT_EQ(content,
            "\n{\"text\":\"a\"}\n\n7\n\n{\"text\":tru}\n\n{\"text\":\"b\x01"
            "c\"} {}\n\n\"\\\"]\"\n\n[1,[2]]\n\nnull\n");
}

TEST(JsonArray, WhatIsNoArrayIsNamedByItsByte) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"[{},{}", "at byte 6 of the data: the data end inside of the array"},
      {"[{},", "at byte 4 of the data: the data end inside"},
      {"[{}, {\"a\": \"b", "the data end inside"},
      {"[{},{},]", "at byte 7 of the data: the array ends where an element should be"},
      {"[{},,{}]", "at byte 4 of the data: a comma where an element should be"},
      {"[,{}]", "at byte 1 of the data: a comma where"},
      {"[{\"a\":1, {\"b\":2}]", "at byte 16 of the data: ']' where '}' should be, in the element from byte 1 on"},
      {"[{}] []", "at byte 5 of the data: something follows the end"},
      {"{\"data\": []}", "name that: format json:FIELD"},
      {"7", "no JSON array begins here"},
      {"\n", "before an array of records begins"},
  };
  for (auto [data, why] : cases) {
    auto found = FindAll(*StoredObject(data, {RecordLayout::kJson}, "s3://corpus/a.json").object.content);
    ASSERT_FALSE(found.has_value()) << data;
    EXPECT_THAT(found.error().ToString(), HasSubstr(why)) << data;
    EXPECT_THAT(found.error().ToString(), HasSubstr("s3://corpus/a.json")) << data;
  }
  const std::pair<std::string_view, std::string_view> fields[] = {
      {"{\"version\": [{\"data\": []}], \"meta\": {}}", "no field \"data\"; it has version, meta"},
      {"{\"data\": {\"a\": []}}", "at byte 9 of the data: the field \"data\" holds no array"},
      {"{\"data\": [{}], \"more\": 1", "the data end inside"},
      {"[{}]", "no JSON object begins here"},
      {"{\"data\": [{}]} {}", "something follows the end"},
      {"{} {\"data\": [{}]}", "something follows the end"},
  };
  for (auto [data, why] : fields) {
    auto found = FindAll(*StoredObject(data, {RecordLayout::kJson, Compression::kNone, "data"}).object.content);
    ASSERT_FALSE(found.has_value()) << data;
    EXPECT_THAT(found.error().ToString(), HasSubstr(why)) << data;
  }
  const std::string deep(kMaxJsonNesting + 1, '[');
  EXPECT_THAT(FindAll(*StoredObject(deep, {RecordLayout::kJson}).object.content).error().ToString(),
              HasSubstr("brackets are open"));
}

TEST(JsonArray, TheFirstByteOfAJsonFileTellsWhatItIs) {
  auto store = object::MakeMemoryStore();
  testing::TestConnection connection;
  connection["corpus"] = store;
  auto format = [&](std::string_view bytes, const std::string& key, std::string declared = "") -> std::string {
    PutText(*store, key, bytes);
    std::vector<DataSource> sources = {{.url = "s3://corpus/" + key, .format = std::move(declared)}};
    auto resolved = ResolveSources(connection, sources);
    if (!resolved) return resolved.error().ToString();
    const auto& content = resolved->objects[0].content;
    return content ? std::string(content->format()) : "lines";
  };
  EXPECT_EQ(format(" \n[{}]", "a.json"), "json");
  EXPECT_EQ(format("\xEF\xBB\xBF[", "b.json"), "json");
  EXPECT_EQ(format("{\"a\": [1, {}]}\n{}\n", "c.json"), "lines");
  EXPECT_EQ(format("not json", "d.json"), "lines");
  EXPECT_EQ(format(testing::Gzip("[\n{}]"), "e.JSON.gz"), "json+gzip");
  EXPECT_EQ(format(testing::Zstd("{}\n"), "f.json.zst"), "jsonl+zstd");
  EXPECT_EQ(format(testing::Zstd("[{}]"), "g.blob", "json+zstd"), "json+zstd");
  EXPECT_EQ(format(testing::Gzip("{\"rows\": []}"), "h.json.gz", "json:rows"), "json+gzip:rows");
  EXPECT_EQ(format("[]", "i.json", "jsonl"), "lines");
  EXPECT_EQ(format("[]", "i.jsonl"), "lines") << "its name says what it is";
  EXPECT_EQ(format("{\n  \"data\": [\n {}\n]}", "j.json"), "objects");
  EXPECT_THAT(format("{\n  \"data\": [" + std::string(50'000, ' ') + "]}", "j.json"),
              HasSubstr("s3://corpus/j.json begins with a long object of several lines"));
  EXPECT_THAT(format("not gzip", "k.json.gz"), HasSubstr("s3://corpus/k.json.gz"));
  EXPECT_THAT(format("[]", "l.json", "jsonl:data"), HasSubstr("what follows a colon"));
  EXPECT_THAT(format("[]", "l.json", "json:"), HasSubstr("what follows a colon"));
}

}  // namespace
}  // namespace millrace::data
