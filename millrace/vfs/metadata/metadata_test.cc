#include "millrace/vfs/metadata/metadata.h"

#include <gtest/gtest.h>

namespace millrace::vfs {
namespace {

using std::chrono::nanoseconds;

void ExpectSame(const Metadata& a, const Metadata& b) {
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.modified, b.modified);
  EXPECT_EQ(a.etag, b.etag);
  EXPECT_EQ(a.as_of, b.as_of);
  EXPECT_EQ(a.complete, b.complete);
  EXPECT_EQ(a.settled, b.settled);
  ASSERT_EQ(a.attributes == nullptr, b.attributes == nullptr);
  if (a.attributes) {
    EXPECT_EQ(*a.attributes, *b.attributes);
  }
}

TEST(MetadataTest, AnyEtagComesBackAsItWas) {
  const std::string digest = "d41d8cd98f00b204e9800998ecf8427e";
  for (std::string etag :
       {std::string(), digest, digest + "-1", digest + "-10000", digest + "-65535", digest + "-65536", digest + "-",
        digest + "-0", digest + "-07", digest + "-x", digest + "x", digest + "-1 ", "D" + digest.substr(1),
        digest.substr(1), std::string("3-odd"), std::string(5000, 'e')}) {
    Metadata metadata{.state = Metadata::State::kFile, .size = 7, .modified = {}, .etag = etag, .as_of = {}};
    ExpectSame(PackedMetadata(metadata).Unpack(), metadata);
  }
}

TEST(MetadataTest, StoredAttributesComeBackAsTheyWere) {
  StoredAttributes full{.mode = 0100644, .uid = 0, .gid = 4'000'000'000, .device = 1ULL << 40};
  full.modified = WallTime(nanoseconds(-1));
  full.accessed = WallTime(nanoseconds(1'700'000'000'123'456'789));
  full.changed = WallTime();
  full.xattrs = {{"user.a", std::string("\0bytes", 6)}, {"user.b", ""}, {"user.c", std::string(1500, 'c')}};
  StoredAttributes few{.uid = 3};
  for (const StoredAttributes& attributes : {StoredAttributes(), few, full}) {
    for (std::string etag : {"", "odd", "d41d8cd98f00b204e9800998ecf8427e-2"}) {
      Metadata metadata{.state = Metadata::State::kFile,
                        .size = ~0ULL,
                        .modified = WallTime(nanoseconds(5)),
                        .etag = etag,
                        .as_of = TimePoint(nanoseconds(9)),
                        .attributes = std::make_shared<const StoredAttributes>(attributes),
                        .complete = true,
                        .settled = true};
      ExpectSame(PackedMetadata(metadata).Unpack(), metadata);
    }
  }
}

}  // namespace
}  // namespace millrace::vfs
