// Tests of stores over a HubServer.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/object/blocking.h"
#include "millrace/object/hf/hub_store.h"
#include "millrace/object/hf/testing/hub_server.h"

namespace millrace::object::hf::testing {

/// A client of a server whose waits for retries take no time.
inline std::shared_ptr<HubClient> ConnectTo(const HubServer& server, std::string token, FakeClock& clock) {
  clock.AdvanceOnSleep(true);
  Settings settings{.endpoint = server.url(), .token = std::move(token)};
  HubClient::Options options{.http = {.timeouts = {.first_byte = std::chrono::seconds(5)}, .hedged_share = 0},
                             .max_attempts = 5};
  return std::make_shared<HubClient>(std::move(settings), std::move(options), clock);
}

class HubTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart({.token = "hf_secret"}); }
  void Restart(HubServer::Options options) {
    server_ = *HubServer::Start(std::move(options));
    server_->Commit("models/o/m", files_);
  }
  std::shared_ptr<Store> Open(std::string_view bucket, std::string token = "") {
    return std::make_shared<HubStore>(ConnectTo(*server_, std::move(token), clock_), Repository::Of(bucket));
  }
  static std::string Content(ReadStore& store, const std::string& key) {
    auto content = GetAll(store, key, kMiB);
    if (!content) return "<error: " + content.error().ToString() + ">";
    return *content ? (*content)->bytes : "<absent>";
  }
  static std::string Range(ReadStore& store, const std::string& key, std::uint64_t offset, std::uint64_t length) {
    std::string into(length, '?');
    auto got = Get(store, key, {.range = ByteRange{offset, length}}, AsWritableBytes(into));
    if (!got) return "<error: " + got.error().ToString() + ">";
    return *got ? into.substr(0, (*got)->bytes) : "<absent>";
  }
  static std::string Noise(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i * i % 23);
    return text;
  }

  const FileContents files_ = {
      {"config.json", "{}"}, {"sub/a b.txt", "text"}, {"sub/model.safetensors", Noise(50'000)}};
  FakeClock clock_;
  std::unique_ptr<HubServer> server_;
};

}  // namespace millrace::object::hf::testing
