// Downloads of objects that a store vouches for by MD5 alone.
#include "millrace/transfer/copy/download_md5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/local/partial_file.h"

namespace millrace::transfer {
namespace {

std::string Content(std::size_t size) {
  std::string bytes(size, '\0');
  Random random(size);
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

object::Checksum Md5Of(const std::string& content) {
  return {object::Checksum::Algorithm::kMd5, std::string(AsText(Md5(AsBytes(content)))), 0};
}

object::Checksum Md5OfParts(const std::string& content, std::size_t part_bytes) {
  std::string digests;
  for (std::size_t at = 0; at < content.size(); at += part_bytes)
    digests += Md5Of(content.substr(at, part_bytes)).value;
  return {object::Checksum::Algorithm::kMd5, Md5Of(digests).value,
          static_cast<int>(digests.size() / sizeof(Md5Digest))};
}

void TakeAll(PartMd5s::Request& request, const std::string& content, std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    const std::size_t size = request.PieceAt(begin);
    Buffer piece = request.NewPiece();
    std::ranges::copy(AsBytes(content).subspan(begin, size), piece.data());
    request.Take(begin, std::move(piece));
    begin += size;
  }
}

TEST(PartMd5s, RequestsMayCoverSeveralPartsAndBeginAgain) {
  Md5Pool pool;
  for (std::size_t part_bytes : {7'000u, 65'536u, 200'000u}) {
    for (std::uint64_t parts_each : {1u, 3u}) {
      const std::string content = Content(200'000);
      PartMd5s md5s(pool, content.size(), part_bytes);
      EXPECT_FALSE(md5s.Matches(Md5OfParts(content, part_bytes))) << "nothing was seen yet";
      const std::uint64_t step = part_bytes * parts_each;
      for (std::uint64_t begin = (content.size() - 1) / step * step;; begin -= step) {  // the last request first
        PartMd5s::Request request(md5s);
        const std::uint64_t end = std::min<std::uint64_t>(content.size(), begin + step);
        TakeAll(request, content, begin, begin + (end - begin) / 2);
        request.Reset();
        TakeAll(request, content, begin, end);
        if (begin == 0) break;
      }
      EXPECT_TRUE(md5s.Matches(Md5OfParts(content, part_bytes)));
      EXPECT_FALSE(md5s.Matches(Md5OfParts(content + "x", part_bytes)));
    }
  }
}

class DownloadMd5Test : public testing::Test {
 protected:
  /// An object that is vouched for as stores do for those that other tools put there.
  object::ObjectInfo Put(const std::string& content, int parts) {
    EXPECT_TRUE(object::Put(*store_, "k", AsBytes(content)));
    object::ObjectInfo info = **object::Head(*store_, "k");
    info.checksum = parts == 0 ? Md5Of(content) : Md5OfParts(content, content.size());
    return info;
  }
  Status Get(const object::ObjectInfo& info, Md5Pool* pool = nullptr) {
    settings_.md5 = pool;
    return Download(*store_, info, path_, settings_, {});
  }

  TempDir folder_ = std::move(*TempDir::Create());
  std::string path_ = (folder_.path() / "out").string();
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore({.limits = {.max_put = 3'000'000}});
  CopySettings settings_{.part_bytes = 40'000, .parallel_parts = 4};
};

TEST_F(DownloadMd5Test, EverySizeIsProved) {
  Md5Pool pool;
  for (int parts : {0, 1}) {
    for (std::size_t size : {40'001u, 140'000u, 1'333'333u}) {
      const std::string content = Content(size);
      const object::ObjectInfo info = Put(content, parts);
      for (Md5Pool* shared : {&pool, static_cast<Md5Pool*>(nullptr)}) {
        ASSERT_TRUE(Get(info, shared)) << size << " bytes";
        EXPECT_EQ(*ReadFile(path_), content);
      }
    }
  }
}

TEST_F(DownloadMd5Test, BesideOthersAWholeObjectComesOverOneConnection) {
  const std::string content = Content(400'000);
  const object::ObjectInfo info = Put(content, 0);
  Md5Pool pool;
  std::deque<Md5Pool::Download> others;
  std::vector<std::uint64_t> arrivals;
  settings_.on_bytes = [&](std::uint64_t bytes) { arrivals.push_back(bytes); };
  settings_.parallel_parts = 1;
  for (int i = 0; i < 7; ++i) others.emplace_back(pool);
  ASSERT_TRUE(Get(info, &pool));
  EXPECT_THAT(arrivals, testing::ElementsAre(400'000U));
  others.pop_back();
  arrivals.clear();
  ASSERT_TRUE(Get(info, &pool));
  EXPECT_THAT(arrivals, testing::SizeIs(10));
}

TEST_F(DownloadMd5Test, AnotherMd5IsDamage) {
  for (int parts : {0, 1}) {
    object::ObjectInfo info = Put(Content(200'000), parts);
    info.checksum.value[3] = static_cast<char>(info.checksum.value[3] ^ 1);
    Status got = Get(info);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code(), Code::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

TEST_F(DownloadMd5Test, PartsOfAnEarlierRunCount) {
  const std::string content = Content(400'000);
  const object::ObjectInfo info = Put(content, 0);
  {
    PartialFile earlier = *PartialFile::Open(
        path_, {.source = store_->Describe() + "/k\n" + info.etag, .size = info.size, .part_bytes = 40'000});
    ASSERT_TRUE(WriteFully(earlier.fd(), AsBytes(content).first(40'000), 0, path_));
    ASSERT_TRUE(earlier.MarkDone(0, Crc32c(AsBytes(content).first(40'000), 0)));
    earlier.KeepFiles();
  }
  std::uint64_t resumed = 0;
  settings_.on_resumed = [&](std::uint64_t bytes) { resumed += bytes; };
  ASSERT_TRUE(Get(info));
  EXPECT_EQ(resumed, 40'000U);
  EXPECT_EQ(*ReadFile(path_), content);
}

}  // namespace
}  // namespace millrace::transfer
