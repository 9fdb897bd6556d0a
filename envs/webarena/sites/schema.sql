-- Ids count from 1 in every copy, so that the same actions give the same addresses.
CREATE TABLE clock (minutes INTEGER NOT NULL);
INSERT INTO clock VALUES (0);

-- The shop; its content management works on the same tables.
CREATE TABLE categories (id INTEGER PRIMARY KEY, slug TEXT UNIQUE, name TEXT);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, slug TEXT UNIQUE, name TEXT, sku TEXT UNIQUE, category_id INTEGER REFERENCES categories,
    price INTEGER, quantity INTEGER, description TEXT, is_enabled INTEGER DEFAULT 1, weight_g INTEGER, origin TEXT
);
CREATE TABLE customers (
    id INTEGER PRIMARY KEY, email TEXT UNIQUE, password TEXT, name TEXT, phone TEXT, street TEXT, city TEXT,
    postcode TEXT, newsletter INTEGER DEFAULT 0, created TEXT
);
CREATE TABLE reviews (
    id INTEGER PRIMARY KEY, product_id INTEGER REFERENCES products, nickname TEXT, rating INTEGER, title TEXT,
    body TEXT, status TEXT, created TEXT
);
CREATE TABLE cart_items (
    customer_id INTEGER REFERENCES customers, product_id INTEGER REFERENCES products, quantity INTEGER,
    PRIMARY KEY (customer_id, product_id)
);
CREATE TABLE wishes (
    customer_id INTEGER REFERENCES customers, product_id INTEGER REFERENCES products,
    PRIMARY KEY (customer_id, product_id)
);
CREATE TABLE coupons (id INTEGER PRIMARY KEY, code TEXT UNIQUE, percent INTEGER, is_active INTEGER);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, number TEXT UNIQUE, customer_id INTEGER REFERENCES customers, created TEXT, status TEXT,
    shipping TEXT, shipping_price INTEGER, discount INTEGER, total INTEGER, street TEXT, city TEXT, postcode TEXT
);
CREATE TABLE order_items (
    order_id INTEGER REFERENCES orders, product_id INTEGER REFERENCES products, name TEXT, price INTEGER,
    quantity INTEGER
);
CREATE TABLE order_comments (id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders, body TEXT, created TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY, name TEXT, email TEXT, subject TEXT, body TEXT, created TEXT);
CREATE TABLE pages (id INTEGER PRIMARY KEY, slug TEXT UNIQUE, title TEXT, body TEXT, is_published INTEGER);
CREATE TABLE admins (id INTEGER PRIMARY KEY, username TEXT UNIQUE, password TEXT);

-- The forum. A score is what the seeded members gave, plus the votes.
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT UNIQUE, password TEXT, bio TEXT, created TEXT);
CREATE TABLE forums (id INTEGER PRIMARY KEY, name TEXT UNIQUE, title TEXT, description TEXT);
CREATE TABLE subscriptions (
    member_id INTEGER REFERENCES members, forum_id INTEGER REFERENCES forums, PRIMARY KEY (member_id, forum_id)
);
CREATE TABLE posts (
    id INTEGER PRIMARY KEY, forum_id INTEGER REFERENCES forums, member_id INTEGER REFERENCES members, title TEXT,
    body TEXT, base_score INTEGER, created TEXT, views INTEGER DEFAULT 0
);
CREATE TABLE comments (
    id INTEGER PRIMARY KEY, post_id INTEGER REFERENCES posts, parent_id INTEGER REFERENCES comments,
    member_id INTEGER REFERENCES members, body TEXT, base_score INTEGER, created TEXT
);
CREATE TABLE votes (
    member_id INTEGER REFERENCES members, kind TEXT, target_id INTEGER, value INTEGER,
    PRIMARY KEY (member_id, kind, target_id)
);

CREATE TABLE letters (
    id INTEGER PRIMARY KEY, sender_id INTEGER REFERENCES members, recipient_id INTEGER REFERENCES members, body TEXT,
    created TEXT
);

-- The code host. Issues and merge requests are numbered within their project by `iid`.
CREATE TABLE developers (
    id INTEGER PRIMARY KEY, username TEXT UNIQUE, password TEXT, name TEXT, bio TEXT, status TEXT
);
CREATE TABLE projects (
    id INTEGER PRIMARY KEY, owner_id INTEGER REFERENCES developers, path TEXT, description TEXT, language TEXT,
    base_stars INTEGER, is_private INTEGER DEFAULT 0, UNIQUE (owner_id, path)
);
CREATE TABLE project_stars (
    developer_id INTEGER REFERENCES developers, project_id INTEGER REFERENCES projects,
    PRIMARY KEY (developer_id, project_id)
);
CREATE TABLE project_members (
    project_id INTEGER REFERENCES projects, developer_id INTEGER REFERENCES developers, role TEXT,
    PRIMARY KEY (project_id, developer_id)
);
CREATE TABLE issues (
    id INTEGER PRIMARY KEY, project_id INTEGER REFERENCES projects, iid INTEGER, title TEXT, body TEXT,
    author_id INTEGER REFERENCES developers, assignee_id INTEGER REFERENCES developers, label TEXT, state TEXT,
    created TEXT, UNIQUE (project_id, iid)
);
CREATE TABLE branches (project_id INTEGER REFERENCES projects, name TEXT, PRIMARY KEY (project_id, name));
CREATE TABLE merge_requests (
    id INTEGER PRIMARY KEY, project_id INTEGER REFERENCES projects, iid INTEGER, title TEXT, body TEXT,
    author_id INTEGER REFERENCES developers, reviewer_id INTEGER REFERENCES developers, source TEXT, target TEXT,
    state TEXT, created TEXT, UNIQUE (project_id, iid)
);
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, project_id INTEGER REFERENCES projects, kind TEXT, iid INTEGER,
    author_id INTEGER REFERENCES developers, body TEXT, created TEXT
);
CREATE TABLE commits (
    id INTEGER PRIMARY KEY, project_id INTEGER REFERENCES projects, sha TEXT, title TEXT,
    author_id INTEGER REFERENCES developers, created TEXT
);
CREATE TABLE files (project_id INTEGER REFERENCES projects, path TEXT, content TEXT, PRIMARY KEY (project_id, path));

CREATE INDEX comments_of_post ON comments (post_id);
CREATE INDEX votes_on_target ON votes (kind, target_id);
CREATE INDEX reviews_of_product ON reviews (product_id);

-- The map: places at junctions of a town's roads; distances in metres.
CREATE TABLE junctions (id INTEGER PRIMARY KEY, x INTEGER, y INTEGER);
CREATE TABLE roads (a INTEGER REFERENCES junctions, b INTEGER REFERENCES junctions, name TEXT, metres INTEGER, kmh INTEGER);
CREATE TABLE places (
    id INTEGER PRIMARY KEY, slug TEXT UNIQUE, name TEXT UNIQUE, kind TEXT, street TEXT, phone TEXT, opens TEXT,
    rating REAL, junction_id INTEGER REFERENCES junctions
);
CREATE TABLE travellers (id INTEGER PRIMARY KEY, name TEXT UNIQUE, password TEXT);
CREATE TABLE place_lists (id INTEGER PRIMARY KEY, traveller_id INTEGER REFERENCES travellers, name TEXT);
CREATE TABLE saved_places (
    list_id INTEGER REFERENCES place_lists, place_id INTEGER REFERENCES places, note TEXT,
    PRIMARY KEY (list_id, place_id)
);
CREATE TABLE reports (
    id INTEGER PRIMARY KEY, place_id INTEGER REFERENCES places, traveller_id INTEGER REFERENCES travellers, reason TEXT,
    details TEXT, created TEXT
);
