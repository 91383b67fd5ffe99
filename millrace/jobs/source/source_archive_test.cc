#include "millrace/jobs/source/source_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/jobs/source/ignore_rules.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class SourceArchiveTest : public testing::Test {
 protected:
  void Write(const std::string& path, std::string_view text, bool is_executable = false) const {
    const fs::path whole = code() / path;
    fs::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    fs::permissions(whole, is_executable ? fs::perms(0700) : fs::perms(0600));
  }
  fs::path code() const { return folder_.path() / "code"; }
  fs::path copy() const { return folder_.path() / "copy"; }
  static std::string Read(const fs::path& path) { return ReadFile(path).value_or("<absent>"); }
  static bool IsExecutable(const fs::path& path) {
    struct stat info{};
    return ::stat(path.c_str(), &info) == 0 && (info.st_mode & S_IXUSR) != 0;
  }
  std::string Complaint(const SourceLimits& limits = {}) const {
    const auto packed = PackSource(code(), limits);
    return packed ? "" : packed.error().ToString();
  }

  const TempDir folder_ = *TempDir::Create();
};

TEST_F(SourceArchiveTest, WhatIsUnpackedIsWhatWasPacked) {
  const std::string deep = std::string(80, 'd') + "/" + std::string(120, 'f') + ".py";
  Write("train.py", "print('hello')\n");
  Write("tools/run.sh", "#!/bin/sh\n", /*is_executable=*/true);
  Write(deep, "deep");
  Write("empty.txt", "");
  fs::create_directory(code() / "nothing");
  fs::create_symlink("../train.py", code() / "tools/main.py");
  fs::create_symlink(deep, code() / "deep.py");
  const auto packed = PackSource(code());
  ASSERT_TRUE(packed) << packed.error().ToString();
  EXPECT_EQ(packed->files, 6U);
  EXPECT_EQ(SourceDigest("s3://runs/source/" + packed->name)->size(), 64U);
  const Status unpacked = UnpackSource(packed->bytes, copy());
  ASSERT_TRUE(unpacked) << unpacked.error().ToString();
  EXPECT_EQ(Read(copy() / "train.py"), "print('hello')\n");
  EXPECT_EQ(Read(copy() / deep), "deep");
  EXPECT_EQ(Read(copy() / "deep.py"), "deep");
  EXPECT_EQ(Read(copy() / "tools/main.py"), "print('hello')\n");
  EXPECT_EQ(Read(copy() / "empty.txt"), "");
  EXPECT_TRUE(fs::is_directory(copy() / "nothing"));
  EXPECT_TRUE(IsExecutable(copy() / "tools/run.sh"));
  EXPECT_FALSE(IsExecutable(copy() / "train.py"));
  EXPECT_EQ(UnpackSource(packed->bytes, copy()).error().code(), Code::kAlreadyExists);
}

TEST_F(SourceArchiveTest, OnlyTheContentCounts) {
  Write("b.py", "1");
  Write("a/c.py", "2");
  const std::string name = PackSource(code())->name;
  fs::last_write_time(code() / "b.py", fs::file_time_type::clock::now() - std::chrono::hours(100));
  fs::permissions(code() / "b.py", fs::perms(0644));
  fs::rename(code() / "a", code() / "x");
  fs::rename(code() / "x", code() / "a");
  fs::rename(code(), folder_.path() / "elsewhere");
  EXPECT_EQ(PackSource(folder_.path() / "elsewhere")->name, name);
  fs::permissions(folder_.path() / "elsewhere/b.py", fs::perms(0744));
  EXPECT_NE(PackSource(folder_.path() / "elsewhere")->name, name);
}

TEST_F(SourceArchiveTest, WhatTheIgnoreFileNamesStays) {
  for (const char* path : {"train.py", ".git/config", "a/__pycache__/x.pyc", "data/big.bin", "a/data/keep",
                           "a/notes.md", "keep.md", "out/log"}) {
    Write(path, path);
  }
  Write(".millraceignore", "# what is large\n/data/\n*.md\n!keep.md\nout/**\n");
  ASSERT_TRUE(UnpackSource(PackSource(code())->bytes, copy()));
  std::vector<std::string> files;
  for (const auto& each : fs::recursive_directory_iterator(copy())) {
    if (each.is_regular_file()) files.push_back(fs::relative(each.path(), copy()).string());
  }
  EXPECT_THAT(files, ::testing::UnorderedElementsAre(".millraceignore", "a/data/keep", "keep.md", "train.py"));
}

TEST(IgnoreRules, FollowTheLanguageOfGitignore) {
  IgnoreRules rules;
  rules.Add("*.log\n!keep.log\na/*.txt\n**/cache/\nx/**/y\n\\#name\n");
  EXPECT_TRUE(rules.Ignores("deep/er.log", false));
  EXPECT_FALSE(rules.Ignores("deep/keep.log", false));
  EXPECT_TRUE(rules.Ignores("a/b.txt", false));
  EXPECT_FALSE(rules.Ignores("a/c/b.txt", false));
  EXPECT_FALSE(rules.Ignores("z/a/b.txt", false));
  EXPECT_TRUE(rules.Ignores("z/cache", true));
  EXPECT_FALSE(rules.Ignores("z/cache", false));
  EXPECT_TRUE(rules.Ignores("x/y", false));
  EXPECT_TRUE(rules.Ignores("x/1/2/y", false));
  EXPECT_TRUE(rules.Ignores("#name", false));
}

TEST_F(SourceArchiveTest, WhatCannotTravelIsNamedWithItsCure) {
  EXPECT_THAT(Complaint(), HasSubstr("there is no folder"));
  fs::create_directory(code());
  EXPECT_THAT(Complaint(), HasSubstr("there is no file"));
  Write("big.bin", std::string(5000, 'x'));
  Write("small.py", "x");
  EXPECT_THAT(Complaint({.bytes = 4096}), HasSubstr("it has big.bin (5.0 kB); name in .millraceignore"));
  EXPECT_THAT(Complaint({.entries = 1}), HasSubstr("more than 1 files and folders"));
  ASSERT_EQ(::mkfifo((code() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(Complaint(), HasSubstr("neither a file, a folder nor a link"));
  fs::remove(code() / "pipe");
  fs::create_directories(code() / "a/b");
  for (const char* target : {"/etc/passwd", "../../../x", "../small.py/../../..", "b/../../../etc"}) {
    fs::create_symlink(target, code() / "a/link");
    EXPECT_THAT(Complaint(), HasSubstr("the link ")) << target;
    fs::remove(code() / "a/link");
  }
}

/// Returns an archive with other bytes at a position.
std::string Forged(std::string archive, std::size_t at, std::string_view text) {
  archive.replace(at, text.size(), text);
  return archive;
}

TEST_F(SourceArchiveTest, AForgedArchiveWritesNothingOutside) {
  constexpr std::size_t kLink = 157;
  Write("abcdefgh", "x");
  const std::string good = PackSource(code())->bytes;
  for (const char* name : {"../outer", "/outside", "a/../../b", "..", "./name"}) {
    std::string padded = name;
    padded.resize(8, '\0');
    const Status unpacked = UnpackSource(Forged(good, 0, padded), copy());
    EXPECT_EQ(unpacked.error().code(), Code::kCorrupt) << name;
    fs::remove_all(copy());
  }
  EXPECT_FALSE(fs::exists(folder_.path() / "outer"));
  EXPECT_EQ(UnpackSource(std::string_view(good).substr(0, 700), copy()).error().code(), Code::kCorrupt);
  fs::remove_all(copy());
  EXPECT_EQ(UnpackSource(Forged(good, 156, "1"), copy()).error().code(), Code::kCorrupt);  // a hard link
  fs::remove_all(copy());

  // A link, and a file below its name: the file is written first, and needs a folder.
  fs::remove(code() / "abcdefgh");
  Write("d/victim", "x");
  fs::create_symlink("d", code() / "link");
  const std::string linked = PackSource(code())->bytes;
  const std::size_t at = linked.find("link");
  EXPECT_EQ(UnpackSource(Forged(linked, at + kLink, std::string_view("/\0", 2)), copy()).error().code(),
            Code::kCorrupt);
  fs::remove_all(copy());
  std::string below = Forged(linked, linked.find("d/victim"), std::string_view("link/abc", 8));
  EXPECT_FALSE(UnpackSource(below, copy()));
  fs::remove_all(copy());

  // A link whose path leads through another link climbs from elsewhere than its path says.
  fs::create_symlink(".", code() / "a");
  Write("b/file", "x");
  Write("d/b/file", "x");
  fs::create_symlink("../../outer", code() / "d/b/l");
  const std::string climbing = PackSource(code())->bytes;
  EXPECT_TRUE(UnpackSource(climbing, copy()));
  fs::remove_all(copy());
  EXPECT_EQ(UnpackSource(Forged(climbing, climbing.find("d/b/l"), "a/b/l"), copy()).error().code(), Code::kCorrupt);
}

TEST_F(SourceArchiveTest, ABucketHasItOnceAndItsBytesAreChecked) {
  Write("train.py", "print()\n");
  const SourceArchive packed = *PackSource(code());
  const auto store = object::FaultStore::Create(object::MakeMemoryStore());
  const object::Location folder{store, "run/source/"};
  const auto key = PutSource(folder, packed, {});
  ASSERT_TRUE(key) << key.error().ToString();
  EXPECT_EQ(*key, "run/source/" + packed.name);
  EXPECT_EQ(*PutSource(folder, packed, {}), *key);
  ASSERT_TRUE(GetSource({store, *key}, copy(), {}));
  EXPECT_EQ(Read(copy() / "train.py"), "print()\n");

  fs::remove_all(copy());
  ASSERT_TRUE(object::Put(*store, *key, AsBytes("other bytes")));
  const Status damaged = GetSource({store, *key}, copy(), {});
  EXPECT_EQ(damaged.error().code(), Code::kCorrupt);
  EXPECT_THAT(damaged.error().ToString(), HasSubstr("delete it"));
  EXPECT_FALSE(fs::exists(copy()));
  ASSERT_TRUE(object::Delete(*store, *key));
  EXPECT_EQ(GetSource({store, *key}, copy(), {}).error().code(), Code::kNotFound);
  EXPECT_EQ(GetSource({store, "run/source/train.tar"}, copy(), {}).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::jobs
