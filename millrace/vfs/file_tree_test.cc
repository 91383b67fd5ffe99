#include "millrace/vfs/file_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::vfs {
namespace {

using testing::UnorderedElementsAre;

class OneBucket final : public object::Connection {
 public:
  explicit OneBucket(std::shared_ptr<object::Store> store) : store_(std::move(store)) {}
  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url&) override { return store_; }
  Result<std::shared_ptr<object::Service>> OpenService() override { return Fail(Code::kUnsupported, "one bucket"); }

 private:
  const std::shared_ptr<object::Store> store_;
};

class FileTreeTest : public testing::Test {
 protected:
  std::unique_ptr<FileTree> Open(bool read_only = false) {
    auto opened = FileTree::Open(connection_, "s3://bucket/top", budget_,
                                 {.read_only = read_only, .staging_directory = staging_.path()});
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened ? *std::move(opened) : nullptr;
  }
  void Put(const std::string& key, std::string_view content) {
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content)));
  }
  std::string Object(const std::string& key) {
    auto content = object::GetAll(*store_, key, kMiB);
    return content && *content ? (*content)->bytes : "<absent>";
  }
  static std::vector<std::string> Names(FileTree& tree, std::string_view path) {
    std::vector<std::string> names;
    EXPECT_TRUE(tree.List(path, [&](std::string_view name, const NodeAttributes& attributes) {
      names.push_back(std::string(name) + (attributes.kind == NodeKind::kDirectory ? "/" : ""));
      return true;
    }));
    return names;
  }
  static Status Write(FileTree& tree, std::string_view path, OpenMode mode, std::string_view content,
                      std::uint64_t offset = 0) {
    auto file = MR_TRY(tree.OpenFile(path, mode));
    MR_TRY(file->Write(offset, AsBytes(content)));
    return file->Close();
  }
  static std::string Read(FileTree& tree, std::string_view path) {
    auto file = tree.OpenFile(path);
    if (!file) return std::string(CodeName(file.error().code()));
    std::string text(*(*file)->Size() + 10, '\0');
    text.resize(*(*file)->Read(0, AsWritableBytes(text)));
    return text;
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore({});
  OneBucket connection_{store_};
  MemoryBudget budget_{256 * kMiB};
  TempDir staging_ = *TempDir::Create();
};

TEST_F(FileTreeTest, ReadsWhatIsInTheBucket) {
  Put("top/a/b", "content");
  Put("top/c", "other");
  Put("beside", "not below the root");
  auto tree = Open(/*read_only=*/true);
  EXPECT_THAT(Names(*tree, ""), UnorderedElementsAre("a/", "c"));
  EXPECT_THAT(Names(*tree, "/a/"), UnorderedElementsAre("b"));
  EXPECT_EQ(Read(*tree, "a/b"), "content");
  EXPECT_EQ(tree->Find("a/b").value()->size, 7u);
  EXPECT_EQ(tree->Find("").value()->kind, NodeKind::kDirectory);
  EXPECT_EQ(tree->Find("a/x").value(), std::nullopt);
  EXPECT_EQ(tree->Find("c/x").value(), std::nullopt);  // c is a file
  EXPECT_EQ(Read(*tree, "a/x"), "not_found");
  EXPECT_EQ(tree->List("c", [](auto, auto&) { return true; }).error().code(), Code::kNotDirectory);
  EXPECT_EQ(tree->OpenFile("d", OpenMode::kCreate).error().code(), Code::kReadOnly);
}

TEST_F(FileTreeTest, AListingStopsWhenAsked) {
  for (int i = 0; i < 20; ++i) Put("top/" + std::to_string(i), "x");
  auto tree = Open(/*read_only=*/true);
  int seen = 0;
  ASSERT_TRUE(tree->List("", [&](auto, auto&) { return ++seen < 3; }));
  EXPECT_EQ(seen, 3);
}

TEST_F(FileTreeTest, WritesArePublishedAsAWhole) {
  auto tree = Open();
  auto file = tree->OpenFile("new", OpenMode::kCreate).value();
  ASSERT_TRUE(file->Write(0, AsBytes("first")));
  EXPECT_EQ(file->Size().value(), 5u);
  EXPECT_EQ(Object("top/new"), "<absent>");
  ASSERT_TRUE(file->Sync());
  EXPECT_EQ(Object("top/new"), "first");
  ASSERT_TRUE(file->Truncate(2));
  ASSERT_TRUE(file->Close());
  EXPECT_EQ(Object("top/new"), "fi");
}

TEST_F(FileTreeTest, OpensAsTheModeSays) {
  Put("top/old", "0123456789");
  auto tree = Open();
  EXPECT_EQ(Write(*tree, "old", OpenMode::kCreate, "x").error().code(), Code::kAlreadyExists);
  ASSERT_TRUE(Write(*tree, "old", OpenMode::kUpdate, "ab", 4));
  EXPECT_EQ(Object("top/old"), "0123ab6789");
  ASSERT_TRUE(Write(*tree, "old", OpenMode::kTruncate, "new"));
  EXPECT_EQ(Object("top/old"), "new");
  ASSERT_TRUE(Write(*tree, "made", OpenMode::kUpdate, "here"));
  EXPECT_EQ(Read(*tree, "made"), "here");
}

TEST_F(FileTreeTest, ChangesNames) {
  auto tree = Open();
  ASSERT_TRUE(tree->MakeDirectory("folder"));
  EXPECT_EQ(tree->MakeDirectory("folder").error().code(), Code::kAlreadyExists);
  EXPECT_EQ(tree->MakeDirectory("absent/folder").error().code(), Code::kNotFound);
  ASSERT_TRUE(Write(*tree, "folder/a", OpenMode::kCreate, "a"));
  ASSERT_TRUE(tree->Rename("folder/a", "folder/b"));
  EXPECT_EQ(Object("top/folder/b"), "a");
  EXPECT_EQ(Object("top/folder/a"), "<absent>");
  EXPECT_EQ(tree->Remove("folder").error().code(), Code::kNotEmpty);
  ASSERT_TRUE(tree->Remove("folder/b"));
  ASSERT_TRUE(tree->Remove("folder"));
  EXPECT_EQ(tree->Remove("folder").error().code(), Code::kNotFound);
  EXPECT_EQ(tree->Remove("").error().code(), Code::kInvalidArgument);
}

TEST_F(FileTreeTest, WritingNeedsAStagingFolder) {
  EXPECT_EQ(FileTree::Open(connection_, "s3://bucket", budget_, {.read_only = false}).error().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::vfs
