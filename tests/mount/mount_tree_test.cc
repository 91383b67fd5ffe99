// Programs that walk a large tree, on a real mount.
#include <gtest/gtest.h>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/s3d/storage/blob.h"
#include "millrace/s3d/storage/storage.h"
#include "tests/mount/mount_program.h"

namespace millrace {
namespace {

constexpr int kAbove = 20, kBelow = 10, kFiles = 1000;  ///< directories, those in each, and files in each of those
constexpr int kSizes = 7;

std::uint64_t SizeOf(int i) { return static_cast<std::uint64_t>(i % kSizes) * 1013; }

/// Puts the tree where the endpoint keeps its objects, which share their bytes; the endpoint is not running.
std::uint64_t MakeTree(const std::filesystem::path& root) {
  auto storage = s3d::Storage::Open(root, /*sync=*/false, SystemClock());
  EXPECT_TRUE(storage) << storage.error().ToString();
  std::vector<s3d::Object> objects;
  for (int i = 0; i < kSizes; ++i) {
    const std::string content(SizeOf(i), 'x');
    s3d::BlobWriter writer((*storage)->blobs());
    EXPECT_TRUE(writer.Append(AsBytes(content)));
    s3d::Object& object = objects.emplace_back();
    object.size = content.size();
    object.extents = *writer.Finish();
    object.etag = HexEncode(Md5(AsBytes(content)));
    object.modified = (*storage)->Now();
  }
  std::uint64_t sum = 0;
  for (int i = 0; i < kAbove * kBelow * kFiles; ++i) {
    const int directory = i / kFiles;
    const auto key = fmt::format("tree/d{:02}/e{}/file-{:03}", directory / kBelow, directory % kBelow, i % kFiles);
    EXPECT_TRUE((*storage)->Put("bucket", key, objects[static_cast<std::size_t>(i % kSizes)], {}));
    sum += SizeOf(i);
  }
  return sum;
}

TEST(MountTreeTest, FindAndDuOf200000ObjectsAreRight) {
  if (Status available = MountProgram::Available(); !available) GTEST_SKIP() << available.error().ToString();
  MountProgram mount;
  mount.StopServer();
  const std::uint64_t sum = MakeTree(mount.scratch() / "buckets");
  mount.StartServer();
  auto mounted = mount.Mount();
  ASSERT_EQ(mounted.status, 0) << mounted.output;

  constexpr int kObjects = kAbove * kBelow * kFiles, kDirectories = 1 + kAbove + kAbove * kBelow;
  EXPECT_EQ(mount
                .Shell("find tree -printf '%y %s %p\\n' | sort -u | "
                       "awk '{ ++n[$1]; sum[$1] += $2 } END { print n[\"f\"], sum[\"f\"], n[\"d\"] }'")
                .output,
            fmt::format("{} {} {}\n", kObjects, sum, kDirectories));
  EXPECT_EQ(mount.Shell("du --inodes -s tree").output, fmt::format("{}\ttree\n", kObjects + kDirectories));
  auto directory = mount.Shell("stat -c %s tree");
  const std::uint64_t all = sum + kDirectories * std::stoull(directory.output);
  EXPECT_EQ(mount.Shell("du -sb tree").output, fmt::format("{}\ttree\n", all));
}

}  // namespace
}  // namespace millrace
