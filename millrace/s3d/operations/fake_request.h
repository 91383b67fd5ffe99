// An HTTP request without a connection, for tests of the code behind the HTTP server.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "millrace/http/server/server.h"

namespace millrace::s3d {

class FakeRequest final : public http::ServerRequest {
 public:
  FakeRequest(std::string method, std::string target, std::string body = "")
      : method_(std::move(method)), target_(std::move(target)), body_(std::move(body)) {
    headers_.Set("Content-Length", std::to_string(body_.size()));
  }
  http::Headers& mutable_headers() { return headers_; }
  /// Makes the body arrive in pieces of at most this many bytes.
  void set_piece(std::size_t piece) { piece_ = piece; }

  std::string_view method() const override { return method_; }
  std::string_view target() const override { return target_; }
  std::string_view path() const override { return std::string_view(target_).substr(0, target_.find('?')); }
  std::string_view query() const override {
    std::size_t mark = target_.find('?');
    return mark == std::string::npos ? std::string_view() : std::string_view(target_).substr(mark + 1);
  }
  const http::Headers& headers() const override { return headers_; }
  std::string_view peer() const override { return "test"; }
  std::optional<std::uint64_t> content_length() const override { return body_.size(); }
  Result<std::size_t> ReadBody(MutableByteSpan into) override {
    std::size_t count = std::min({into.size(), body_.size() - read_, piece_});
    std::memcpy(into.data(), body_.data() + read_, count);
    read_ += count;
    return count;
  }
  Result<std::string> ReadAllBody(std::uint64_t) override { return body_; }
  std::stop_token stop() const override { return {}; }

 private:
  std::string method_, target_, body_;
  http::Headers headers_;
  std::size_t read_ = 0, piece_ = SIZE_MAX;
};

}  // namespace millrace::s3d
