// Flags of the object commands about what is written, selected and removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using testing_support::Ran;

class ObjectOptions : public ObjectFixture {
 protected:
  Json Head(const std::string& url) { return Millrace({"head", "--json", url}).objects().at(0); }
};

TEST_F(ObjectOptions, ContentTypesFollowTheExtension) {
  for (const char* name : {"d/a.htm", "d/b.webp", "d/c.yml", "d/plain"}) WriteLocal(name, "x");
  ASSERT_EQ(Millrace({"cp", "-r", "d/", "s3://bucket/"}).exit, 0);
  EXPECT_EQ(Head("s3://bucket/a.htm")["content_type"], "text/html");
  EXPECT_EQ(Head("s3://bucket/b.webp")["content_type"], "image/webp");
  EXPECT_EQ(Head("s3://bucket/c.yml")["content_type"], "application/yaml");
}

TEST_F(ObjectOptions, MetadataOfCopiesAreKeptOrDropped) {
  WriteLocal("f.txt", "x");
  ASSERT_EQ(Millrace({"cp", "--metadata", "a=b", "f.txt", "s3://bucket/k"}).exit, 0);
  ASSERT_EQ(Millrace({"cp", "--metadata-directive", "COPY", "s3://bucket/k", "s3://bucket/kept"}).exit, 0);
  ASSERT_EQ(Millrace({"cp", "--metadata-directive", "REPLACE", "s3://bucket/k", "s3://bucket/dropped"}).exit, 0);
  EXPECT_EQ(Head("s3://bucket/kept")["metadata"]["a"], "b");
  EXPECT_TRUE(Head("s3://bucket/dropped")["metadata"].empty());
  const Ran both =
      Millrace({"cp", "--metadata-directive", "COPY", "--metadata", "c=d", "s3://bucket/k", "s3://bucket/l"});
  EXPECT_EQ(both.exit, 2);
  EXPECT_THAT(both.err, HasSubstr("COPY keeps all metadata"));
}

TEST_F(ObjectOptions, WrongValuesAreNamed) {
  WriteLocal("f", "x");
  for (const auto& [flag, value, words] :
       {std::tuple("--tagging", "novalue", "expected name=value"), std::tuple("--tagging", "=v", "expected name=value"),
        std::tuple("--tagging", "a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&j=10&k=11", "at most 10 tags"),
        std::tuple("--expires", "tomorrow", "expected a time"), std::tuple("--metadata-directive", "MERGE", "COPY")}) {
    const Ran ran = Millrace({"cp", flag, value, "f", "s3://bucket/k"});
    EXPECT_EQ(ran.exit, 2) << flag;
    EXPECT_THAT(ran.err, HasSubstr(words));
  }
}

TEST_F(ObjectOptions, LinksAreLeftOutOnRequest) {
  WriteLocal("d/file", "x");
  WriteLocal("elsewhere/inner", "y");
  fs::create_symlink("file", work() / "d/link");
  fs::create_directory_symlink("../elsewhere", work() / "d/folder");
  fs::create_symlink("nowhere", work() / "d/broken");
  EXPECT_EQ(Millrace({"cp", "-r", "--no-follow-symlinks", "d/", "s3://bucket/a/"}).exit, 0);
  EXPECT_EQ(Millrace({"sync", "--no-follow-symlinks", "d/", "s3://bucket/b/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("a/file", "b/file"));
  EXPECT_EQ(Millrace({"cp", "--no-follow-symlinks", "d/link", "s3://bucket/c"}).exit, 2);
}

TEST_F(ObjectOptions, FlattenDropsFolders) {
  for (const char* name : {"d/a", "d/sub/b", "d/sub/deep/c"}) WriteLocal(name, name);
  EXPECT_EQ(Millrace({"cp", "-r", "--flatten", "d/", "s3://bucket/flat/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/flat/"), ElementsAre("flat/a", "flat/b", "flat/c"));
  WriteLocal("d/other/c", "clashes");
  const Ran clash = Millrace({"cp", "-r", "--flatten", "d/", "down/"});
  EXPECT_EQ(clash.exit, 3);
  EXPECT_THAT(clash.err, HasSubstr("another source of this command has this destination"));
  EXPECT_THAT(LocalFiles("down"), UnorderedElementsAre("a", "b", "c"));
}

TEST_F(ObjectOptions, VersionsOfABucketWithoutThem) {
  WriteLocal("f", "x");
  ASSERT_EQ(Millrace({"cp", "f", "s3://bucket/k"}).exit, 0);
  EXPECT_THAT(Millrace({"ls", "--versions", "s3://bucket/"}).out, HasSubstr("null k (latest)"));
  EXPECT_EQ(Millrace({"cat", "--version-id", "null", "s3://bucket/k"}).out, "x");
  EXPECT_EQ(Millrace({"cat", "--at", "0s", "s3://bucket/k"}).out, "x");
  EXPECT_EQ(Millrace({"cat", "--at", "2020-01-31", "s3://bucket/k"}).exit, 4);
  EXPECT_EQ(Millrace({"undelete", "s3://bucket/k"}).exit, 0) << "it is there";
  EXPECT_EQ(Millrace({"undelete", "s3://bucket/absent"}).exit, 4);
  EXPECT_EQ(Millrace({"rm", "--versions", "s3://bucket/k"}).exit, 0);
  EXPECT_TRUE(Keys("s3://bucket/").empty());
  EXPECT_EQ(Millrace({"rm", "--versions", "f"}).exit, 2) << "local files have no versions";
  EXPECT_EQ(Local("f"), "x");
}

TEST_F(ObjectOptions, WordsOfOtherToolsAreAnswered) {
  for (const char* flag : {"--dryrun", "--only-show-errors", "--no-progress", "--numworkers", "--if-source-newer",
                           "--copy-props", "--force-glacier-transfer"}) {
    const Ran ran = Millrace({"cp", flag, "a", "b"});
    EXPECT_EQ(ran.exit, 2);
    EXPECT_THAT(ran.err, HasSubstr(std::string("unknown \"") + flag + "\": ")) << flag;
  }
}

TEST_F(ObjectOptions, RestoreLeavesReadableObjects) {
  WriteLocal("f", "x");
  ASSERT_EQ(Millrace({"cp", "f", "s3://bucket/k"}).exit, 0);
  EXPECT_EQ(Millrace({"restore", "--wait", "s3://bucket/k", "--json"}).objects().back()["unchanged"], 1);
  EXPECT_EQ(Millrace({"restore", "s3://bucket/absent"}).exit, 4);
  EXPECT_EQ(Millrace({"restore", "--days", "0", "s3://bucket/k"}).exit, 2);
}

}  // namespace
}  // namespace millrace
