#include "millrace/transfer/plan/items.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::transfer {
namespace {

using testing::ElementsAre;

Result<std::vector<std::string>> Names(ItemStream& stream) {
  std::vector<std::string> names;
  for (;;) {
    auto item = MR_TRY(stream.Next());
    if (!item) return names;
    names.push_back(item->name);
  }
}

TEST(ListStore, YieldsAllPagesNamedFromThePrefix) {
  auto store = object::MakeMemoryStore();
  std::vector<std::string> expected;
  for (int i = 0; i < 2500; ++i) {
    expected.push_back(fmt::format("{:05}", i));
    ASSERT_TRUE(object::Put(*store, "data/" + expected.back(), {}));
  }
  ASSERT_TRUE(object::Put(*store, "other", {}));
  auto stream = ListStore(*store, "data/", 5, {});
  EXPECT_EQ(Names(*stream).value_or(std::vector<std::string>()), expected);
}

TEST(ListStore, ReportsAFailureAndCanBeLeftEarly) {
  auto memory = object::MakeMemoryStore();
  for (int i = 0; i < 1500; ++i) ASSERT_TRUE(object::Put(*memory, fmt::format("{:05}", i), {}));
  auto store = object::FaultStore::Create(memory);
  store->Add({.operation = object::Operation::kList, .skip = 1, .fault = {.code = Code::kUnavailable}});
  auto stream = ListStore(*store, "", 0, {});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(stream->Next());
  EXPECT_FALSE(stream->Next());
  auto left = ListStore(*store, "", 0, {});
  ASSERT_TRUE(left->Next());
}

TEST(ListLocal, YieldsFilesInKeyOrder) {
  TempDir folder = std::move(*TempDir::Create());
  for (const char* name : {"a-b", "a/x", "a/y", "a.b", "z"}) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    ASSERT_TRUE(WriteFileAtomic(folder.path() / name, AsBytes("12345")));
  }
  std::string prefix = folder.path().string().substr(1) + "/";
  auto stream = ListLocal(prefix, prefix.size(), nullptr, {});
  ASSERT_TRUE(stream);
  EXPECT_THAT(Names(**stream).value_or(std::vector<std::string>()), ElementsAre("a-b", "a.b", "a/x", "a/y", "z"));
}

TEST(ListLocal, LinksAreItemsForThoseWhoRemove) {
  TempDir folder = std::move(*TempDir::Create());
  std::filesystem::create_directories(folder.path() / "tree/b-");
  std::filesystem::create_directories(folder.path() / "out");
  for (const char* file : {"tree/a", "tree/b-/x", "out/o"}) {
    ASSERT_TRUE(WriteFileAtomic(folder.path() / file, AsBytes("1")));
  }
  std::filesystem::create_directory_symlink(folder.path() / "out", folder.path() / "tree/b");
  std::filesystem::create_symlink("nowhere", folder.path() / "tree/c");
  const std::string prefix = (folder.path() / "tree/").string().substr(1);
  auto names = [&](Links links) {
    auto stream = ListLocal(prefix, prefix.size(), {}, {}, links);
    return Names(**stream).value_or(std::vector<std::string>());
  };
  EXPECT_THAT(names(Links::kFollow), ElementsAre("a", "b-/x", "b/o"));
  EXPECT_THAT(names(Links::kList), ElementsAre("a", "b-/x", "b/", "c"));
  EXPECT_THAT(names(Links::kBoth), ElementsAre("a", "b-/x", "b/", "b/o", "c"));
}

}  // namespace
}  // namespace millrace::transfer
