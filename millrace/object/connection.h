// The interface through which modules get the store of a URL. object/open/open.h implements it; tests have their own.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/base/error.h"
#include "millrace/object/location.h"
#include "millrace/object/service.h"
#include "millrace/object/store.h"
#include "millrace/object/url.h"

namespace millrace::object {

/// One endpoint with one identity. Its stores share connections, retry budget and credentials. Thread-safe. Must
/// outlive its stores.
class Connection {
 public:
  virtual ~Connection() = default;
  /// s3: the bucket of `url`. hf: the repository at its revision; writes fail with kReadOnly. file: the root folder
  /// "/", so that keys are absolute paths without their first slash.
  virtual Result<std::shared_ptr<Store>> OpenStore(const Url& url) = 0;
  /// Errors: kUnsupported if the connection has no buckets to manage.
  virtual Result<std::shared_ptr<Service>> OpenService() = 0;
  /// Returns a URL that keeps naming the content that is there now. hf: with the commit that the revision is. Other
  /// URLs come back as they are. Blocks on requests. Errors: those of reading there.
  virtual Result<Url> Pin(const Url& url, Call call) {
    (void)call;
    return url;
  }
  /// Looks for credentials again, because the shared AWS files may have changed. Open stores use the new credentials
  /// for their next requests; requests in flight keep the old ones. After an error all keep the old ones. Blocks on
  /// files only.
  virtual Status ReloadCredentials() { return {}; }
};

/// Parses the URL and opens its store. For file URLs the key is the absolute path without its first slash.
Result<Location> Locate(Connection& connection, std::string_view url);

}  // namespace millrace::object
