// An S3 endpoint: the entry point of this module.
#pragma once

#include <memory>
#include <string>

#include "millrace/http/client/client.h"
#include "millrace/object/connect_options.h"
#include "millrace/object/service.h"
#include "millrace/object/store.h"

namespace millrace::object::s3 {

/// One S3 service, used with one identity. Its stores share connections, credentials and the budget for retries.
/// Thread-safe. It may be destroyed before its stores, which keep alive what they share. No completion may destroy it
/// or its stores.
class Endpoint {
 public:
  /// Reads the environment and the shared AWS files, but sends nothing. Errors: kInvalidArgument for settings that
  /// cannot work.
  static Result<std::unique_ptr<Endpoint>> Open(ConnectOptions options);
  ~Endpoint();

  /// Sends nothing. If the bucket does not exist, the first call of the store fails.
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
