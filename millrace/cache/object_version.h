// The name of one version of an object.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::cache {

/// One version of one object. The ETag is part of every cache key, so a changed object never gets its old bytes.
struct ObjectVersion {
  std::string key;
  std::string etag;
  std::uint64_t size = 0;
};

}  // namespace millrace::cache
