// The information that a store has of an object: size, ETag, times, metadata and checksum.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "millrace/base/clock.h"

namespace millrace::object {

/// A digest of an object's bytes that the store keeps.
struct Checksum {
  /// The way the digest is computed.
  enum class Algorithm {
    kNone,       ///< there is no digest
    kMd5,        ///< RFC 1321
    kCrc32c,     ///< Castagnoli's polynomial, as RFC 3720 has it
    kCrc64Nvme,  ///< the polynomial of NVM Express
    kSha256,     ///< FIPS 180-4
    kGitBlob,    ///< git's name of a file: the SHA-1 of "blob SIZE", a NUL byte and the content
  };
  Algorithm algorithm = Algorithm::kNone;  ///< of the digest
  std::string value;                       ///< the digest's bytes, most significant first
  int parts = 0;  ///< more than 0: a digest of the digests of this many upload parts, as in the ETag "…-3"
  bool operator==(const Checksum&) const = default;
};

/// The way in which S3 stores an object and describes its content. An empty field means the bucket's default. Stores
/// ignore the fields that they do not support.
struct Attributes {
  std::string storage_class;        ///< "STANDARD_IA"
  std::string acl;                  ///< a canned ACL: "public-read". Only written: Head never returns it
  std::string encryption;           ///< "AES256", "aws:kms"
  std::string kms_key;              ///< with "aws:kms"
  std::string cache_control;        ///< the HTTP header of this name
  std::string content_encoding;     ///< the HTTP header of this name
  std::string content_disposition;  ///< the HTTP header of this name
  std::string content_language;     ///< the HTTP header of this name
  std::string expires;              ///< the HTTP header of this name
  std::string website_redirect;     ///< where a bucket that is a web site redirects to
  int tags = 0;                     ///< how many tags there are. Only read: see PutOptions::tags_of
  std::string tagging;              ///< tags, "name=value&name=value", percent-encoded. Only written
  // Only read.
  std::string restore;     ///< of an archived object: whether a copy can be read, or is on its way, and until when
  std::string lock_mode;   ///< "GOVERNANCE" or "COMPLIANCE": the version cannot be deleted
  std::string lock_until;  ///< until this time, in the form of ISO 8601
  std::string legal_hold;  ///< "ON": nor can it be while this holds
};

/// The metadata of one version of an object. A listing leaves the fields after `modified` empty.
struct ObjectInfo {
  std::string key;                               ///< the whole name in the bucket
  std::uint64_t size = 0;                        ///< bytes
  std::string etag;                              ///< opaque, without quotes; changes whenever the content does
  WallTime modified;                             ///< when this version was written
  std::string content_type;                      ///< "application/json"
  std::map<std::string, std::string> metadata;   ///< user metadata; names in lower case, without "x-amz-meta-"
  Checksum checksum;                             ///< of the whole content, if the store has one
  std::shared_ptr<const Attributes> attributes;  ///< may be null
  std::string version;                           ///< the version's id, if the store is a VersionView; else empty
};

/// One version of an object, in a bucket that keeps old versions.
struct VersionInfo {
  ObjectInfo info;        ///< as in a listing; of a delete marker, only the key and the time
  std::string id;         ///< "null" for a version from a time when the bucket kept no versions
  bool latest = false;    ///< whether the key shows this version now
  bool deletion = false;  ///< a delete marker: it has no content
};

}  // namespace millrace::object
