// What a store says about an object: size, ETag, times, metadata and checksum.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "millrace/base/clock.h"

namespace millrace::object {

/// A digest of an object's bytes that the store keeps.
struct Checksum {
  enum class Algorithm {
    kNone,
    kMd5,
    kCrc32c,
    kCrc64Nvme,
    kSha256,
    kGitBlob,  ///< git's name of a file: the SHA-1 of "blob SIZE", a NUL byte and the content
  };
  Algorithm algorithm = Algorithm::kNone;
  std::string value;  ///< the digest's bytes, most significant first
  int parts = 0;      ///< more than 0: a digest of the digests of this many upload parts, as in the ETag "…-3"
  bool operator==(const Checksum&) const = default;
};

/// How S3 stores an object and describes its content. An empty field means the bucket's default. Stores ignore the
/// fields that they do not support.
struct Attributes {
  std::string storage_class;  ///< "STANDARD_IA"
  std::string acl;            ///< a canned ACL: "public-read". Only written: Head never returns it
  std::string encryption;     ///< "AES256", "aws:kms"
  std::string kms_key;        ///< with "aws:kms"
  std::string cache_control, content_encoding, content_disposition;
};

/// The metadata of one version of an object. A listing leaves the fields after `modified` empty.
struct ObjectInfo {
  std::string key;
  std::uint64_t size = 0;
  std::string etag;  ///< opaque, without quotes; changes whenever the content does
  WallTime modified;
  std::string content_type;
  std::map<std::string, std::string> metadata;   ///< user metadata; names in lower case, without "x-amz-meta-"
  Checksum checksum;                             ///< of the whole content, if the store has one
  std::shared_ptr<const Attributes> attributes;  ///< may be null
};

/// One version of an object, in a bucket that keeps old versions.
struct VersionInfo {
  ObjectInfo info;  ///< as in a listing
  std::string id;   ///< "null" for a version from a time when the bucket kept no versions
  bool latest = false;
  bool deletion = false;  ///< a delete marker: it has no content
};

}  // namespace millrace::object
