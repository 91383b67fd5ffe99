#include "millrace/vfs/rename/rename_record.h"

#include <gtest/gtest.h>

#include "millrace/base/json.h"

namespace millrace::vfs {
namespace {

RenameRecord Example() {
  return {.id = "1f",
          .owner = "boot:ns:1:2",
          .lease = "aa",
          .beat = 3,
          .from = "p/a/\xC3\xA9 \"x\"/",
          .to = "p/b/",
          .replaced_empty = true,
          .committed = true,
          .sources = {{"", "e0", WallTime(std::chrono::seconds(5)), "c0"}, {"s//f\n", "e1", WallTime(), ""}}};
}
const RenameRoot kRoot{.key = "p/"};

/// The example with one member changed.
std::string With(const char* member, Json value) {
  Json json = *ParseJson(EncodeRename(Example(), kRoot), "test");
  json[member] = std::move(value);
  return DumpJson(json);
}

TEST(RenameRecordTest, RecordsComeBackAsTheyWere) {
  const RenameRecord record = Example();
  auto decoded = DecodeRename(EncodeRename(record, kRoot), "test", kRoot);
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, record);
}

TEST(RenameRecordTest, DamagedOrForeignRecordsAreRefused) {
  const std::string good = EncodeRename(Example(), kRoot);
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(DecodeRename(good.substr(0, cut), "test", kRoot)) << cut;
  }
  EXPECT_FALSE(DecodeRename(With("to", "a/\xC3\xA9 \"x\"/below/"), "test", kRoot)) << "into itself";
  EXPECT_EQ(DecodeRename(With("format", "millrace-rename-3"), "test", kRoot).error().code(), Code::kUnsupported);
}

TEST(RenameRecordTest, NamesStayBelowTheRoot) {
  for (const char* member : {"from", "to"}) {
    for (const char* name :
         {"", "/", "../x/", "x/../../y/", "./x/", "x//y/", "/x/", "x", ".millrace/", "x/.millrace/"}) {
      auto decoded = DecodeRename(With(member, name), "the record", kRoot);
      ASSERT_FALSE(decoded) << member << " " << name;
      EXPECT_EQ(decoded.error().code(), Code::kCorrupt) << decoded.error().ToString();
    }
  }
  auto moved = DecodeRename(With("from", "elsewhere/"), "test", kRoot);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->from, "p/elsewhere/") << "whatever a record says, it is below the root";
}

TEST(RenameRecordTest, AnotherBucketIsNamedOnlyInATreeOfAllBuckets) {
  const RenameRoot bucket{.key = "one/", .other_buckets = true};
  RenameRecord record = Example();
  record.from = "one/a/";
  record.to = "two/b/";
  const std::string text = EncodeRename(record, bucket);
  auto decoded = DecodeRename(text, "test", bucket);
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(*decoded, record);
  EXPECT_EQ(DecodeRename(text, "test", {}).error().code(), Code::kUnsupported);
  for (const char* name : {"", "..", "x/y", "/"}) {
    Json json = *ParseJson(text, "test");
    json["to_bucket"] = name;
    EXPECT_FALSE(DecodeRename(DumpJson(json), "test", bucket)) << name;
  }
}

}  // namespace
}  // namespace millrace::vfs
