// A store on a server that does what the test says: for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/http/testing/scripted_server.h"
#include "millrace/object/blocking.h"
#include "millrace/object/s3/session.h"

namespace millrace::object::s3 {

using http::testing::Answer;
using http::testing::ScriptedServer;
using Reply = ScriptedServer::Reply;
using Seen = ScriptedServer::Seen;
using Then = ScriptedServer::Reply::Then;

class FixedKeys final : public CredentialSource {
 public:
  Result<Credentials> Fetch(std::stop_token) override { return Credentials{.access_key = "AK", .secret_key = "SK"}; }
  std::string Describe() const override { return "test"; }
  bool fixed() const override { return true; }
};

inline std::string ErrorBody(std::string_view code) {
  return fmt::format("<Error><Code>{}</Code><Message>scripted</Message></Error>", code);
}
inline Reply Refuse(int status, std::string_view code, std::string_view fields = {}) {
  return {Answer(status, ErrorBody(code), fields)};
}

/// A store of bucket "b" on a scripted server. Waits for retries take no time.
class S3StoreTest : public ::testing::Test {
 protected:
  void Serve(ScriptedServer::Script script, int max_attempts = 5,
             std::unique_ptr<CredentialSource> keys = std::make_unique<FixedKeys>()) {
    server_ = std::make_unique<ScriptedServer>(std::move(script));
    Settings settings{.scheme = "http",
                      .authority = fmt::format("127.0.0.1:{}", server_->port()),
                      .loopback = true,
                      .region = "us-east-1",
                      .max_attempts = max_attempts,
                      .first_contact = first_contact_,
                      .customer_key = customer_key_,
                      .copy_source_key = copy_source_key_,
                      .new_objects = new_objects_,
                      .expected_bucket_owner = expected_bucket_owner_};
    http::Client::Options client{
        .timeouts = {.first_byte = std::chrono::milliseconds(200), .stall = std::chrono::milliseconds(200)}};
    clock_.AdvanceOnSleep(true);
    session_ = std::make_shared<Endpoint::Session>(settings, std::move(keys), client, *store_clock_);
    store_ = NewStore(session_, "b");
  }
  Result<std::optional<GetResult>> GetText(std::string& into, GetOptions options = {}) {
    return Get(*store_, "k", std::move(options), AsWritableBytes(into));
  }

  FakeClock clock_;
  Clock* store_clock_ = &clock_;
  std::optional<Duration> first_contact_;
  std::string customer_key_, copy_source_key_, expected_bucket_owner_;
  Attributes new_objects_;
  std::unique_ptr<ScriptedServer> server_;
  std::shared_ptr<Endpoint::Session> session_;
  std::shared_ptr<Store> store_;
};

}  // namespace millrace::object::s3
