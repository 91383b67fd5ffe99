// An S3 endpoint: the entry to this module.
#pragma once

#include <memory>
#include <string>

#include "millrace/http/client/client.h"
#include "millrace/object/connect_options.h"
#include "millrace/object/service.h"
#include "millrace/object/store.h"

namespace millrace::object::s3 {

/// One S3 service reached with one identity. Its stores share connections, credentials and the budget for retries.
/// Thread-safe. It may be destroyed before its stores: what they share lives until the last of them is gone. Neither it
/// nor its stores may be destroyed from within a completion.
class Endpoint {
 public:
  /// Reads the environment and the shared AWS files, but sends nothing. Fails with kInvalidArgument on settings that
  /// cannot work.
  static Result<std::unique_ptr<Endpoint>> Open(ConnectOptions options);
  ~Endpoint();

  /// Sends nothing: that the bucket does not exist shows at first use.
  std::shared_ptr<Store> OpenBucket(std::string bucket);
  Service& service();
  /// See Connection::ReloadCredentials.
  Status ReloadCredentials();
  http::Client::Stats stats() const;

  class Session;

 private:
  Endpoint(ConnectOptions options, std::shared_ptr<Session> session);
  const ConnectOptions options_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<Service> service_;
};

}  // namespace millrace::object::s3
