#include "millrace/object/open/open.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/object/blocking.h"

namespace millrace::object {
namespace {

TEST(Locate, FilesAreKeysBeneathTheRootFolder) {
  auto connection = OpenConnection({});
  ASSERT_TRUE(connection);
  TempDir folder = std::move(*TempDir::Create());
  ASSERT_TRUE(WriteFileAtomic(folder.path() / "x", AsBytes("content")));
  auto location = Locate(**connection, (folder.path() / "x").string());
  ASSERT_TRUE(location) << location.error().ToString();
  EXPECT_EQ("/" + location->key, (folder.path() / "x").string());
  auto content = GetAll(*location->store, location->key, 100);
  ASSERT_TRUE(content && *content);
  EXPECT_EQ((*content)->bytes, "content");
  auto again = Locate(**connection, "file://" + folder.path().string() + "/./sub/../x");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->key, location->key);
  EXPECT_EQ(again->store, location->store);
}

TEST(Locate, KeepsTheSlashThatSaysFolder) {
  auto connection = OpenConnection({});
  std::string here = std::filesystem::current_path().string().substr(1);
  EXPECT_EQ(Locate(**connection, "a/b/")->key, here + "/a/b/");
  EXPECT_EQ(Locate(**connection, "./a/./b")->key, here + "/a/b");
  EXPECT_EQ(Locate(**connection, "/")->key, "");
}

TEST(Locate, SaysWhatIsWrong) {
  auto connection = OpenConnection({});
  EXPECT_EQ(Locate(**connection, "ftp://x/y").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Locate(**connection, "s3://").error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::object
