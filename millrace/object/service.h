// The buckets of one endpoint: list, make and remove them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// Manages the buckets of one endpoint. Thread-safe. Calls block.
class Service {
 public:
  /// A bucket of the listing.
  struct Bucket {
    std::string name;  ///< as in its URL
    WallTime created;  ///< when it was made
  };
  virtual ~Service() = default;
  /// As ReadStore::Identity.
  virtual std::string Identity() const = 0;
  virtual Result<std::vector<Bucket>> ListBuckets(Call call) = 0;  ///< those of this identity
  /// Errors: kAlreadyExists if somebody has a bucket of this name.
  virtual Status MakeBucket(std::string_view name, Call call) = 0;
  /// Errors: kNotEmpty if the bucket still has objects.
  virtual Status RemoveBucket(std::string_view name, Call call) = 0;
};

}  // namespace millrace::object
