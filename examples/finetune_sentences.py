"""Fine-tune a sentence model on questions about the notes of a town, and score its search before and after.

    python examples/finetune_sentences.py [MODEL]

The model is a directory or a name; default: the environment variable MHA_NATIVE_MODEL, or else all-MiniLM-L6-v2. It
learns from one question for each note, by layers of torch whose attention is computed by this library, forward and
backward. The score is for other questions: how often the right note is found first, and the mean of 1 / rank.
"""

import os
import sys
import tempfile
from pathlib import Path

try:
    import sentence_transformers
    import torch
except ImportError:
    sys.exit("this example needs the package sentence-transformers: pip install sentence-transformers")

import numpy as np

from mha_native.interop.torch import accelerate
from mha_native.models import SentenceEncoder

# For each note in order: a question to learn from, and one that is held out.
QUESTIONS = """\
When can I borrow a novel? | Can I return what I read on a Sunday?
For how long may I keep a novel? | Do I have to bring the thriller back this month?
Where do I throw an empty bottle? | Which container takes old newspapers?
Who fetches my worn-out armchair? | How do I get rid of a couch?
When is it warm enough for swimming? | Is the basin heated in June?
Does my toddler pay for swimming? | Is there a price for a four-year-old in the water?
How do I get to the trains? | When does the last connection leave late in the evening?
I cannot find my fare card. | What do I pay if the inspector finds me without my pass?
May I bring my bike along? | Can a cyclist ride along in the morning?
Where can I leave my car? | How long may my van stand in the centre?
I want to travel abroad. | Which papers do I need to cross the border?
I have a new flat. | Whom do I tell that we have moved?
Where do I get medicine at midnight? | Who sells painkillers when all shops are closed?
My son has a fever on Sunday. | Whom do I ring when I am ill on Saturday?
My kitten needs an injection. | Where is my puppy protected from disease?
May my poodle run freely? | Where can a terrier run without a leash?
Where are fresh carrots sold? | Who has eggs from the country?
Is it safe to drink from the pipe? | Where does what I drink at home come from?
May I sprinkle my roses in July? | When are lawns allowed to get a shower?
Who sweeps in winter? | It has been freezing; must I get up early with a shovel?
My daughter wants to play an instrument. | Do I have to buy a trumpet for my first lesson?
I would like to learn a language. | Where do I learn how to make a vase?
Where do I see foreign movies? | Is there a screening with subtitles?
What costs nothing on a weekend? | Where do I see old watches for free?
May I let off rockets at New Year? | Where are bangers not allowed?
When may I cut the grass? | Is noise allowed at lunch time?
How do I get online? | Is there wifi for my laptop?
I left my purse on the bus. | Someone picked up my glasses; where are they now?
I need to make a hole in the wall. | Who has something to climb on for my cherry tree?
I want to hear an orchestra in the open air. | How do I get a place for the evening with music?
""".splitlines()

name = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MHA_NATIVE_MODEL", "all-MiniLM-L6-v2")
notes = Path(__file__).with_name("town_notes.txt").read_text(encoding="utf-8").splitlines()
learned, held_out = zip(*(line.split(" | ") for line in QUESTIONS), strict=True)


def report(when, encoder):
    """Print the scores of all questions, and return the mean of 1 / rank of those held out."""
    embeddings = encoder.encode(notes)
    for kind, questions in (("learned", learned), ("held out", held_out)):
        likeness = encoder.encode(questions) @ embeddings.T  # [questions, notes]
        ranks = 1 + (likeness > likeness.diagonal()[:, None]).sum(1)
        score = np.mean(1 / ranks)
        print(f"{when}, {kind:8}: found first {np.mean(ranks == 1):.2f}, mean of 1 / rank {score:.2f}")
    return score


try:
    before = report("before", SentenceEncoder.from_pretrained(name))
except (ImportError, OSError) as error:
    sys.exit(f"{error}\nexamples/README.md says how to get the model.")

torch.manual_seed(0)
model = sentence_transformers.SentenceTransformer(name, device="cpu")
print(accelerate(model, training=True))
model[0].auto_model.embeddings.requires_grad_(False)  # frozen
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=5e-5)
model.train()
for epoch in range(6):
    questions, answers = (model(model.preprocess(list(texts)))["sentence_embedding"] for texts in (learned, notes))
    cosines, targets = questions @ answers.T, torch.arange(len(notes))
    # Each question moves to its note and away from others, and each note likewise.
    loss = sum(torch.nn.functional.cross_entropy(20 * scores, targets) for scores in (cosines, cosines.T)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    after = report("after", SentenceEncoder.from_pretrained(folder))
assert after > before
