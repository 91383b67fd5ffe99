// One page of a listing, made from keys offered in order. Stores that walk a sorted set of keys share it.
#pragma once

#include <string>
#include <string_view>

#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// Applies prefix, delimiter, start-after, continuation and max_keys of one request. One owner, one page.
///
///   PageBuilder page(request);
///   for (key = first key >= page.start(); ; )
///     switch (page.Offer(info)) { kTaken: next key; kSkip: first key >= page.start(); kDone: return page.Take(); }
class PageBuilder {
 public:
  /// Fails with kInvalidArgument on a continuation that no page has given, or max_keys out of range.
  static Result<PageBuilder> Start(ListRequest request);

  /// No key before this one can be on the page. Moves on when Offer returns kSkip.
  const std::string& start() const { return start_; }

  enum class Next { kTaken, kSkip, kDone };
  /// Takes the next key in order, if the page wants it. kDone: the page is full or nothing beyond can match.
  Next Offer(const ObjectInfo& object);
  /// Call when no keys are left, or after kDone.
  ListPage Take() { return std::move(page_); }

 private:
  explicit PageBuilder(ListRequest request) : request_(std::move(request)) {}
  bool Full() const;
  void Remember(char kind, std::string_view item);

  ListRequest request_;
  std::string start_;
  std::string after_;  ///< keys and prefixes up to this one are not wanted
  std::string last_;   ///< the continuation that follows the last item taken
  ListPage page_;
};

/// The smallest string greater than every string that begins with `prefix`; empty when there is none.
std::string EndOfPrefix(std::string_view prefix);

}  // namespace millrace::object
