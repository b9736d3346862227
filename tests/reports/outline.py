"""A page as a browser would read it."""

from html.parser import HTMLParser


class Outline(HTMLParser):
    """Tags with their attributes, the text that is read, and what stands in each script by its id."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.words = ""
        self.scripts = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if self.cdata_elem is None:
            self.words += data.replace("\N{NO-BREAK SPACE}", " ")
        elif tag == "script":
            self.scripts[attributes.get("id")] = self.scripts.get(attributes.get("id"), "") + data

    @property
    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    @property
    def names(self):
        """Of tags."""
        return [tag for tag, _ in self.tags]
