// Builds one page of a listing from keys in order, for stores that walk a sorted set of keys.
#pragma once

#include <string>
#include <string_view>

#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::object {

/// Applies prefix, delimiter, start-after, continuation and max_keys of one request. Builds one page. Not thread-safe.
///
///   PageBuilder page(request);
///   for (key = first key >= page.start(); ; )
///     switch (page.Offer(info)) { kTaken: next key; kSkip: first key >= page.start(); kDone: return page.TakePage(); }
class PageBuilder {
 public:
  /// Errors: kInvalidArgument if no page has returned this continuation, or if max_keys is out of range.
  static Result<PageBuilder> Start(ListRequest request);

  /// No key before this one can be on the page. It increases when Offer returns kSkip.
  const std::string& start() const { return start_; }

  enum class Next {
    kTaken,  ///< go on with the next key
    kSkip,   ///< go on with the first key not less than start()
    kDone,   ///< the page is full, or no later key can match
  };
  /// Adds the next key in order, if it belongs on the page.
  Next Offer(const ObjectInfo& object);
  /// The page. Call it after kDone or when no keys are left.
  ListPage TakePage() { return std::move(page_); }

 private:
  explicit PageBuilder(ListRequest request) : request_(std::move(request)) {}
  bool Full() const;
  void Remember(char kind, std::string_view item);

  ListRequest request_;
  std::string start_;
  std::string after_;  ///< keys and prefixes up to this one are not on the page
  std::string last_;   ///< the continuation after the last item
  ListPage page_;
};

/// The smallest string greater than every string that begins with `prefix`; empty if there is none.
std::string EndOfPrefix(std::string_view prefix);

}  // namespace millrace::object
