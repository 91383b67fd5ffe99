// The state that the stores of an endpoint share. Internal to this module.
#pragma once

#include <memory>

#include "millrace/http/client/client.h"
#include "millrace/object/s3/endpoint.h"
#include "millrace/object/s3/requests/dispatcher.h"
#include "millrace/object/service.h"

namespace millrace::object::s3 {

/// Each member may use the members above it, because they are destroyed after it.
class Endpoint::Session {
 public:
  Session(Settings settings, std::unique_ptr<CredentialSource> source, http::Client::Options options, Clock& clock);

  Dispatcher& dispatcher() { return dispatcher_; }
  http::Client& client() { return client_; }
  CredentialCache& credentials() { return credentials_; }

 private:
  const Settings settings_;
  CredentialCache credentials_;
  Timers timers_;
  http::Client client_;
  Dispatcher dispatcher_;
};

std::shared_ptr<Store> NewStore(std::shared_ptr<Endpoint::Session> session, std::string bucket);
std::unique_ptr<Service> NewService(std::shared_ptr<Endpoint::Session> session);

}  // namespace millrace::object::s3
