#include "frontend/answer_receipt.h"

namespace invar {

Receipt receipt_of(const Request& request) {
  Receipt receipt{.choice = request.choice,
                  .prompt = request.prompt,
                  .params = request.params,
                  .stop = request.stop.strings(),
                  .include_stop = request.include_stop,
                  .skip_special = request.skip_special,
                  .grammar = request.structured_output};
  receipt.params.logprobs = receipt.params.prompt_logprobs = std::nullopt;
  return receipt;
}

json::Value signed_receipt(Receipt receipt, const TextAnswer& answer, const ReceiptKey& key) {
  receipt.tokens = answer.tokens;
  receipt.finish = name_of(answer.finish);
  std::vector<Digest> checkpoints = answer.hash_checkpoints;
  if (answer.tokens.size() % kReceiptLink != 0) checkpoints.push_back(answer.logits_hash);
  set_chain(receipt, checkpoints);
  key.sign(receipt);
  return to_json(receipt);
}

}  // namespace invar
