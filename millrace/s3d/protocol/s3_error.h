// Errors as S3 clients know them.
#pragma once

#include <expected>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::s3d {

/// What an <Error> document says: S3's code, the HTTP status that belongs to it, a sentence.
struct S3Error {
  std::string code;
  int status = 500;
  std::string message;

  S3Error(std::string_view error_code, std::string error_message);
  /// A failure of ours: the disk's, or the connection's.
  S3Error(const Error& error);  // NOLINT: conversion is the point
};

/// The result of an S3 operation.
template <class T>
using Reply = std::expected<T, S3Error>;

[[nodiscard]] inline std::unexpected<S3Error> Refuse(std::string_view code, std::string message) {
  return std::unexpected(S3Error(code, std::move(message)));
}

/// The HTTP status of an S3 error code; 400 for one that is not in the table.
int StatusOfS3Code(std::string_view code);

}  // namespace millrace::s3d
