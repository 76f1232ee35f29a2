// Thoughts go to the client and come back with the next request. Thoughts that come back are
// checked.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace invar {

class ThoughtSeal {
 public:
  // `secret`: who knows it can make signatures. The same secret gives the same bytes, so that an
  // answer that is made again repeats them.
  explicit ThoughtSeal(std::string_view secret);

  // The signature of a block of type thinking: HMAC-SHA256, hexadecimal.
  std::string sign(std::string_view thought) const;
  bool signs(std::string_view thought, std::string_view signature) const;

  // The thought in a form that a client cannot read or change (AES-256-GCM with a nonce of its
  // signature), hexadecimal; and back. Nothing where it was not closed by this secret.
  std::string close(std::string_view thought) const;
  std::optional<std::string> open(std::string_view closed) const;

 private:
  std::array<unsigned char, 32> key_{};
};

}  // namespace invar
