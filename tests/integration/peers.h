// S3 servers of other makers for tests, where the machine has them.
#pragma once

#include <memory>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"

namespace millrace::peers {

/// One server on a free loopback port with a folder of its own, gone with the object.
class Server {
 public:
  struct Options {
    std::string access_key, secret_key;
    bool tls = false;  ///< with a certificate of its own for localhost, made by the openssl command
  };
  /// kUnsupported when neither $MILLRACE_PEERS/bin nor PATH has a `minio`, or for TLS an `openssl`. The server also
  /// knows buckets by host name: BUCKET.localhost.
  static Result<std::unique_ptr<Server>> StartMinio(Options options);
  /// Starts `versitygw`, which keeps objects as files. No TLS.
  static Result<std::unique_ptr<Server>> StartVersityGateway(Options options);

  const std::string& url() const { return url_; }  ///< http(s)://localhost:port
  std::string certificate() const { return (folder_.path() / "certs" / "public.crt").string(); }

 private:
  Server(TempDir folder, Subprocess process, std::string url)
      : folder_(std::move(folder)), process_(std::move(process)), url_(std::move(url)) {}
  /// Waits until requests are served.
  static Result<std::unique_ptr<Server>> Await(std::string name, TempDir folder, Subprocess process, std::string url);
  TempDir folder_;
  Subprocess process_;
  std::string url_;
};

}  // namespace millrace::peers
