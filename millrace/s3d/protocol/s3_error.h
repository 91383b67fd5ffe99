// The errors of the S3 protocol.
#pragma once

#include <expected>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::s3d {

/// The content of an <Error> document: S3's code, its HTTP status, a sentence.
struct S3Error {
  std::string code;
  int status = 500;
  std::string message;
  // Only of a bucket that is elsewhere; else empty.
  std::string region;         ///< <Region>
  std::string region_header;  ///< x-amz-bucket-region
  std::string endpoint;       ///< <Endpoint>
  std::string location;       ///< Location

  S3Error(std::string_view error_code, std::string error_message);
  /// Converts a failure of the disk or the connection.
  S3Error(const Error& error);  // NOLINT: conversion is the point
};

/// The result of an S3 operation.
template <class T>
using Reply = std::expected<T, S3Error>;

[[nodiscard]] inline std::unexpected<S3Error> Refuse(std::string_view code, std::string message) {
  return std::unexpected(S3Error(code, std::move(message)));
}

/// Returns the HTTP status of an S3 error code; 400 for a code that is not in the table.
int StatusOfS3Code(std::string_view code);

}  // namespace millrace::s3d
