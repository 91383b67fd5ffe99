#include "millrace/data/formats/json_objects.h"

#include <gmock/gmock.h>

#include "millrace/data/formats/json_array.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::FindAll;
using ::testing::HasSubstr;
using testing::ReadBack;
using testing::StoredObject;

const DataFormat kObjects{RecordLayout::kObjects, Compression::kNone};

TEST(JsonObjects, AreRecordsHoweverTheyArePrinted) {
  EXPECT_EQ(
      ReadBack(
          *StoredObject("\xEF\xBB\xBF{\n  \"a\": [1,\r\n 2]\n}\n\n{\"b\": \"} \\\" {\"}{}", kObjects).object.content),
      "{   \"a\": [1,   2] }\n{\"b\": \"} \\\" {\"}\n{}\n");
  EXPECT_EQ(ReadBack(*StoredObject(" \n ", kObjects).object.content), "");
}

TEST(JsonObjects, LongDataAreCutBetweenThem) {
  Random random(3);
  std::string data, lines;
  for (int i = 0; data.size() < 14 << 20; ++i) {
    std::string text(random.Below(5000), static_cast<char>('a' + i % 26));
    data += fmt::format("{{\n \"n\": {},\n \"text\": \"{}\"\n}}{}", i, text, i % 3 == 0 ? "" : "\n\n");
    lines += fmt::format("{{  \"n\": {},  \"text\": \"{}\" }}\n", i, text);
  }
  for (Compression compression : {Compression::kNone, Compression::kGzip}) {
    StoredObject stored(compression == Compression::kGzip ? testing::Gzip(data, 1) : data,
                        {RecordLayout::kObjects, compression});
    EXPECT_GE(FindAll(*stored.object.content)->frames.size(), 2U);
    EXPECT_TRUE(ReadBack(*stored.object.content) == lines);
  }
}

TEST(JsonObjects, WhatIsNoneIsSaidWithItsPlace) {
  for (auto [data, message] : {std::pair{"{} 7", "at byte 3"},
                               {"{\"a\": [}", "at byte 7"},
                               {"{\"a\": 1", "the data end"},
                               {"[1]", "where a JSON object should begin"}}) {
    auto found = FindAll(*StoredObject(data, kObjects, "s3://b/x.json").object.content);
    ASSERT_FALSE(found.has_value()) << data;
    EXPECT_EQ(found.error().code(), Code::kCorrupt);
    EXPECT_THAT(found.error().ToString(), HasSubstr(message));
    EXPECT_THAT(found.error().ToString(), HasSubstr("s3://b/x.json"));
  }
}

TEST(JsonObjects, AreToldFromLinesAndArrays) {
  auto look = [](std::string_view data) {
    StoredObject stored(data, kObjects);
    return LookAtJson(stored.object, Compression::kNone, {});
  };
  EXPECT_EQ(look("{\n\"a\": 1}\n{\n\"a\": 2}\n").value(), RecordLayout::kObjects);
  EXPECT_EQ(look("{\"a\": 1}\n{\"a\": 2}\n").value(), RecordLayout::kJsonLines);
  EXPECT_EQ(look("\n [{\n\"a\": 1}]").value(), RecordLayout::kJson);
  auto around = look("{\n\"data\": [" + std::string(50'000, ' ') + "]}");
  ASSERT_FALSE(around.has_value());
  EXPECT_THAT(around.error().ToString(), HasSubstr("json:FIELD"));
}

}  // namespace
}  // namespace millrace::data
